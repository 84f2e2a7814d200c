# SPDX-License-Identifier: Apache-2.0
"""Whoever dies at whatever step: the old version keeps serving, every byte of it, and the next refit succeeds."""
import os
import signal
import unittest

from harness import SLOWDOWN, SystemTest, engine_layout, source_layout

SLOW = ("--rate", "512KiB")  # the transfer of 0.5 MB then lasts about a second


class Kills(SystemTest):
    def begin(self, *options, reader_options=()):
        replica = self.replica("a", engine_layout(2), "--staged-ttl", "3s", *options, reader_options=reader_options)
        self.succeeds(replica, 1)
        return replica

    def succeeds(self, replica, version):
        lines = self.publish(source_layout(), [version], [replica])
        self.assertTrue(lines and lines[0].startswith(f"ok {version} "), lines)
        replica.wait_step(version)

    def still_serves(self, replica, version):
        self.assertEqual(replica.active(), version)
        self.assertEqual(replica.admin("/readyz")[0], 200)

    def test_a_trainer_rank_dies_in_the_transfer(self):
        for victim in (0, 1):
            with self.subTest(rank=victim):
                replica = self.replica(f"r{victim}", engine_layout(2), *SLOW)
                self.succeeds(replica, 1)
                ranks = self.publish(source_layout(), [2], [replica], wait=False)
                replica.wait_phase("transfer", version=2)
                ranks[victim].kill()
                state = replica.wait_end(2)
                self.assertEqual(state["phase"], "aborted")
                for rank in ranks:
                    rank.wait()
                self.still_serves(replica, 1)
                self.succeeds(replica, 3)

    def test_a_stopped_trainer_ends_its_refit_at_the_deadline(self):
        replica = self.begin(*SLOW)
        ranks = self.publish(source_layout(), [2], [replica], "deadline=2500", wait=False)
        replica.wait_phase("transfer", version=2)
        for rank in ranks:
            rank.kill(signal.SIGSTOP)
        state = replica.wait_end(2)
        self.assertEqual((state["phase"], state["error"]["status"]), ("aborted", "timeout"))
        self.still_serves(replica, 1)
        for rank in ranks:
            rank.kill(signal.SIGCONT)
            self.assertNotEqual(rank.wait(), 0)
        self.succeeds(replica, 3)

    def test_an_engine_that_is_stopped_in_prepare_is_named(self):
        replica = self.begin()
        replica.readers[1].kill(signal.SIGSTOP)
        lines = self.publish(source_layout(), [2], [replica], f"deadline={int(3000 * SLOWDOWN)}")
        self.assertTrue(lines[0].startswith("failed 2 "), lines)
        self.assertIn("rank 1 did not answer", replica.wait_end(2)["error"]["text"])
        self.assertIn("rank 1 did not answer", lines[0])  # the lead's report says so, too
        replica.readers[1].kill(signal.SIGCONT)
        self.still_serves(replica, 1)
        self.succeeds(replica, 3)

    def test_the_lead_dies_between_staged_and_commit(self):
        replica = self.begin(reader_options=["prepare-file=" + self.path("prepare")])
        held = self.keep("prepare")
        ranks = self.publish(source_layout(), [2], [replica], wait=False)
        replica.wait_phase("prepare", version=2)
        ranks[0].kill()
        ranks[0].wait()
        os.unlink(held)
        replica.wait_phase("staged", version=2)
        self.still_serves(replica, 1)
        state = replica.wait_end(2)  # by its time to live
        self.assertEqual(state["phase"], "aborted")
        ranks[1].wait()
        self.still_serves(replica, 1)
        self.succeeds(replica, 3)

    def test_an_engine_rank_dies_in_the_transfer(self):
        for victim in (0, 1):
            with self.subTest(rank=victim):
                replica = self.replica(f"e{victim}", engine_layout(2), *SLOW)
                self.succeeds(replica, 1)
                ranks = self.publish(source_layout(), [2], [replica], wait=False)
                replica.wait_phase("transfer", version=2)
                replica.readers[victim].kill()
                replica.readers[victim].wait()
                replica.start_readers(victim)
                for rank in ranks:
                    rank.wait()
                self.assertTrue(ranks[0].lines[0].startswith("ok 2 "), ranks[0].lines)
                replica.wait_step(2)
                self.succeeds(replica, 3)

    def test_an_engine_rank_dies_in_prepare(self):
        replica = self.begin(reader_options=["prepare-file=" + self.path("prepare")])
        held = self.keep("prepare")
        ranks = self.publish(source_layout(), [2], [replica], wait=False)
        replica.wait_phase("prepare", version=2)
        replica.readers[1].kill()
        replica.readers[1].wait()
        os.unlink(held)
        for rank in ranks:
            rank.wait()
        replica.start_readers(1)
        self.succeeds(replica, 3)

    def test_an_engine_rank_that_died_comes_back_to_the_version_served(self):
        replica = self.begin()
        for victim in (0, 1):
            replica.readers[victim].kill()
            replica.readers[victim].wait()
            replica.start_readers(victim)
            replica.readers[victim].wait_line(f"step {1 + victim} ")
            self.succeeds(replica, 2 + victim)

    def test_dead_readers_pins_do_not_keep_a_slot(self):
        replica = self.begin(reader_options=["hold=200"])
        for version in range(2, 6):
            for victim in (0, 1):
                replica.readers[victim].kill()  # most likely while it holds a pin
                replica.readers[victim].wait()
            replica.start_readers()
            self.succeeds(replica, version)

    def test_refitd_dies_at_each_step(self):
        for phase, options, reader_options in (("transfer", SLOW, ()), ("prepare", (), ["prepare-file=" + self.path("prepare")])):
            with self.subTest(phase=phase):
                replica = self.replica(f"d-{phase}", engine_layout(2), *options, reader_options=reader_options)
                self.succeeds(replica, 1)
                held = self.keep("prepare")
                ranks = self.publish(source_layout(), [2], [replica], "deadline=8000", wait=False)
                replica.wait_phase(phase, version=2)
                replica.refitd.kill()
                replica.refitd.wait()
                os.unlink(held)
                replica.start()
                for rank in ranks:
                    rank.wait()
                self.assertTrue(ranks[0].lines[0].startswith("failed 2 "), ranks[0].lines)
                self.wait_active(replica, 1)
                self.succeeds(replica, 3)

    def wait_active(self, replica, version):
        import time
        for _ in range(2000):
            if replica.active() == version:
                return
            time.sleep(0.01)
        self.fail(f"{replica.name} serves {replica.weights()}")

    def test_one_dead_replica_does_not_hold_up_another(self):
        replica, dead = self.begin(), self.replica("dead", engine_layout(1))
        self.succeeds(dead, 1)
        dead.refitd.kill()
        dead.refitd.wait()
        lines = self.publish(source_layout(), [2], [replica, dead], "deadline=6000")
        self.assertTrue(lines[0].startswith("failed 2 "), lines)
        outcomes = [line.split(" ")[2] for line in lines if line.startswith("replica")]
        self.assertEqual(outcomes[0], "committed")
        replica.wait_step(2)


if __name__ == "__main__":
    unittest.main()
