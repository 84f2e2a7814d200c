# SPDX-License-Identifier: Apache-2.0
"""SIGTERM in each state of a refit, and `refit drain` in the middle of one: an end in time, and the old version serves on."""
import os
import signal
import subprocess
import time
import unittest

from harness import WAIT_S, SystemTest, engine_layout, source_layout, tool

SLOW = ("--rate", "512KiB")  # the transfer of 0.5 MB then lasts about a second


class Drain(SystemTest):
    def succeeds(self, replica, version):
        lines = self.publish(source_layout(), [version], [replica])
        self.assertTrue(lines and lines[0].startswith(f"ok {version} "), lines)
        replica.wait_step(version)

    def term(self, replica, held=None):
        """0: ended by itself within --drain-timeout; past that it would be 1. `held` is let go of meanwhile."""
        replica.refitd.kill(signal.SIGTERM)
        if held:
            os.unlink(held)
        self.assertEqual(replica.refitd.wait(), 0)

    def serves_after_restart(self, replica, version):
        replica.start()
        replica.call("GET", "/v1/weights")
        for _ in range(int(WAIT_S * 100)):
            status, body = replica.admin("/readyz")
            if status == 200:
                break
            time.sleep(0.01)
        self.assertEqual((status, body["version"]), (200, version))

    def test_sigterm_in_each_state(self):
        preparing = ["prepare-file=" + self.path("prepare")]
        states = (("transfer", SLOW, ()), ("prepare", (), preparing), ("staged", ("--staged-ttl", "60s"), preparing))
        for phase, options, reader_options in states:
            with self.subTest(phase=phase):
                replica = self.replica(f"t-{phase}", engine_layout(2), *options, reader_options=reader_options)
                self.succeeds(replica, 1)
                held = self.keep("prepare")
                ranks = self.publish(source_layout(), [2], [replica], "deadline=8000", wait=False)
                if phase == "staged":  # nobody is left to commit it
                    replica.wait_phase("prepare", version=2)
                    ranks[0].kill()
                    ranks[0].wait()
                    os.unlink(held)
                replica.wait_phase(phase, version=2)
                self.term(replica, held if phase != "staged" else None)
                for rank in ranks:
                    rank.wait()
                self.serves_after_restart(replica, 1)
                self.succeeds(replica, 3)

    def test_sigterm_while_a_refit_waits_for_readers(self):
        held = self.path("hold")
        open(held, "w", encoding="utf-8").close()
        replica = self.replica("w", engine_layout(2), reader_options=[f"hold-file={held}"])
        self.publish(source_layout(), [1], [replica])
        for reader in replica.readers.values():
            reader.wait_line("holding 1")
        self.publish(source_layout(), [2], [replica])
        ranks = self.publish(source_layout(), [3], [replica], "deadline=30000", wait=False)
        replica.wait_phase("waiting-for-readers", version=3)
        self.term(replica)
        for rank in ranks:
            rank.wait()
        self.assertTrue(ranks[0].lines[0].startswith("failed 3 "), ranks[0].lines)

    def test_sigterm_right_after_the_commit_was_asked_for(self):
        replica = self.replica("c", engine_layout(2))
        self.succeeds(replica, 1)
        ranks = self.publish(source_layout(), [2], [replica], "deadline=8000", wait=False)
        replica.wait_phase("committing", "committed", version=2)
        self.term(replica)
        for rank in ranks:
            rank.wait()
        # Whole on one side of the swap or on the other: the readers check every byte of every step.
        replica.start()
        self.succeeds(replica, 3)

    def test_drain_lets_the_running_refit_end_and_keeps_the_next_one_away(self):
        replica = self.replica("d", engine_layout(2), *SLOW)
        self.succeeds(replica, 1)
        ranks = self.publish(source_layout(), [2], [replica], wait=False)
        replica.wait_phase("transfer", version=2)
        command = [tool("cli", "refit"), "drain", "--admin", f"127.0.0.1:{replica.ports['admin']}", "--timeout", f"{int(WAIT_S)}s"]
        drain = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            for rank in ranks:
                rank.wait()
            self.assertTrue(ranks[0].lines[0].startswith("ok 2 "), ranks[0].lines)
            replica.wait_step(2)
            self.assertEqual(replica.admin("/readyz")[0], 503)
            self.assertEqual(replica.admin("/livez")[0], 200)
            self.assertTrue(self.publish(source_layout(), [3], [replica])[0].startswith("failed 3 "))
            self.assertIsNone(drain.poll())
            for reader in replica.readers.values():
                reader.kill(signal.SIGTERM)
                reader.wait()
            self.assertEqual(drain.wait(WAIT_S), 0, drain.stdout.read())
        finally:
            if drain.poll() is None:
                drain.kill()
            drain.wait()
            drain.stdout.close()
        self.term(replica)


if __name__ == "__main__":
    unittest.main()
