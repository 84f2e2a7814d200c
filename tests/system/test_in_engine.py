# SPDX-License-Identifier: Apache-2.0
"""refitd --receive in-engine, over the look-alikes of CUDA and NCCL: a trainer on devices, engines that receive, refitd that grants."""
import signal
import time
import unittest

from harness import SLOWDOWN, engine_layout, source_layout
from test_gpu import Devices, environment


class InEngine(Devices):
    SLOW = ("--rate", "512KiB")  # the transfer of 0.5 MB then lasts about a second

    def in_engine(self, name, *options, ranks=2, reader_options=()):
        replica = self.gpu(name, ranks, "--receive", "in-engine", *options, reader_options=reader_options)
        self.wait_offered(replica)
        return replica

    def wait_offered(self, replica, offered=True):
        """Engines say that they can once they are attached."""
        for _ in range(int(3000 * SLOWDOWN)):
            if ("nccl" in replica.call("GET", "/v1/host")[1]["transports"]) == offered:
                return
            time.sleep(0.01)
        self.fail("nccl is not offered" if offered else "nccl is offered")

    def publish_from_gpus(self, version, replicas, *options, wait=True):
        with environment(STANDIN_CUDA_ORDER="4,5"):  # NCCL takes one process per GPU
            return self.publish(source_layout(), [version], replicas, "cuda", "transport=nccl", *options, wait=wait)

    def lands(self, version, *replicas):
        words = self.publish_from_gpus(version, replicas)[0].split(" ")
        self.assertEqual((words[:2], words[-1]), (["ok", str(version)], "nccl"), words)
        for replica in replicas:
            replica.wait_step(version)

    def still_serves(self, replica, version):
        self.assertEqual(replica.active(), version)

    def until_bytes_come(self, replica, version):
        replica.wait_session(lambda state: state["version"] == version and state["phase"] == "transfer" and state["bytes_done"] > 0)

    def test_versions_arrive_whole(self):
        replica, host = self.in_engine("engines"), self.replica("host", engine_layout(1))
        for version in (1, 2, 3):
            self.lands(version, replica)
        self.succeeds(4, replica, host, options=["cuda", "transport=tcp"])
        self.lands(5, replica)
        self.assert_ends_clean(replica, host)

    def test_versions_arrive_in_every_swap_mode(self):
        for name, *options in (("copy",), ("remap",), ("in-place", "--slots", "1")):
            with self.subTest(mode=name):
                replica = self.in_engine(name, "--swap", name, *options, reader_options=["stable"])
                for version in (1, 2):
                    self.lands(version, replica)
                self.assert_ends_clean(replica)

    def test_it_is_offered_while_every_rank_can(self):
        replica = self.in_engine("engines")
        self.lands(1, replica)
        replica.readers[1].end()
        self.wait_offered(replica, False)
        lines = self.publish_from_gpus(2, [replica])
        self.assertTrue(lines[0].startswith("failed 2 unsupported"), lines)
        self.assertIn("none is attached as rank 1", lines[0])
        self.assertIn("in the engines here", lines[0])
        self.still_serves(replica, 1)
        replica.start_readers(1)
        self.wait_offered(replica)
        self.lands(3, replica)
        self.assert_ends_clean(replica)

    def test_an_engine_that_dies_in_the_transfer_costs_the_refit(self):
        for victim in (0, 1):
            with self.subTest(rank=victim):
                replica = self.in_engine(f"e{victim}", *self.SLOW)
                self.lands(1, replica)
                ranks = self.publish_from_gpus(2, [replica], wait=False)
                self.until_bytes_come(replica, 2)
                replica.readers[victim].kill()
                replica.readers[victim].wait()
                self.assertEqual(replica.wait_end(2)["phase"], "aborted")
                for rank in ranks:
                    rank.wait()
                self.still_serves(replica, 1)
                replica.start_readers(victim)
                self.wait_offered(replica)
                self.lands(3, replica)
                self.assert_ends_clean(replica)

    def test_nobody_gets_the_slot_of_an_engine_that_is_stopped(self):
        """It may go on and write: not before it has said that it has stopped, or is gone, is the slot filled again."""
        for resumed in (True, False):
            with self.subTest(resumed=resumed):
                replica = self.in_engine(f"stopped-{resumed}", *self.SLOW)
                self.lands(1, replica)
                ranks = self.publish_from_gpus(2, [replica], wait=False)
                self.until_bytes_come(replica, 2)
                replica.readers[1].kill(signal.SIGSTOP)
                state = replica.wait_end(2)
                self.assertEqual(state["phase"], "aborted")
                self.assertIn("may still write into slot", state["error"]["text"])
                for rank in ranks:
                    rank.wait()
                self.still_serves(replica, 1)
                lines = self.publish(source_layout(), [3], [replica], "cuda", "transport=tcp", "deadline=1500")
                self.assertTrue(lines[0].startswith("failed 3 "), lines)
                self.assertRegex(replica.wait_end(3)["error"]["text"], "may still be written by the engine of rank 1|"
                                 "rank 1: its engine may still write into slot")  # whether the lead gave up before or after
                self.still_serves(replica, 1)
                if resumed:
                    replica.readers[1].kill(signal.SIGCONT)
                else:
                    replica.readers[1].kill()
                    replica.readers[1].wait()
                    replica.start_readers(1)
                    self.wait_offered(replica)
                self.lands(4, replica)
                self.assert_ends_clean(replica)

    def test_an_engine_detaches_in_the_transfer(self):
        replica = self.in_engine("engines", *self.SLOW)
        self.lands(1, replica)
        ranks = self.publish_from_gpus(2, [replica], wait=False)
        self.until_bytes_come(replica, 2)
        self.assertEqual(replica.readers[1].end(), 0)
        self.assertEqual(replica.wait_end(2)["phase"], "aborted")
        for rank in ranks:
            rank.wait()
        self.still_serves(replica, 1)
        replica.start_readers(1)
        self.wait_offered(replica)
        self.lands(3, replica)
        self.assert_ends_clean(replica)

    def test_refitd_dies_in_the_transfer(self):
        replica = self.in_engine("engines", *self.SLOW)
        self.lands(1, replica)
        ranks = self.publish_from_gpus(2, [replica], wait=False)
        self.until_bytes_come(replica, 2)
        replica.refitd.kill()
        replica.refitd.wait()
        for rank in ranks:
            rank.kill()
        replica.start()
        self.wait_weights(replica, lambda weights: weights["active"] and not weights["adopting"])
        self.still_serves(replica, 1)
        self.wait_offered(replica)
        self.lands(3, replica)
        self.assert_ends_clean(replica)

    def test_nccl_that_never_comes_up_or_breaks_costs_at_most_its_refit(self):
        for switch, lands in (("init-hangs", False), ("error-after-groups:1:6", True)):
            with self.subTest(switch=switch):
                replica = self.in_engine(switch.split(":")[0])
                self.lands(1, replica)
                replica.readers[0].end()
                with environment(STANDIN_NCCL=switch):
                    replica.start_readers(0)
                self.wait_offered(replica)
                lines = self.publish_from_gpus(2, [replica], *([] if lands else ["deadline=4000"]))
                self.assertTrue(lines[0].startswith("ok 2 " if lands else "failed 2 "), lines)
                self.still_serves(replica, 2 if lands else 1)
                self.succeeds(3, replica, options=["cuda", "transport=tcp"])
                self.assert_ends_clean(replica)


if __name__ == "__main__":
    unittest.main()
