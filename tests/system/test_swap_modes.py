# SPDX-License-Identifier: Apache-2.0
"""Refits of engines with addresses baked in: swap modes copy, remap and in-place. Readers check every byte of every step, and
that no address ever changes."""
import os
import time
import unittest

from harness import WAIT_S, SystemTest, engine_layout, source_layout

MODES = ("copy", "remap", "in-place")


class SwapModes(SystemTest):
    def mode(self, name, mode, layout, *options, reader_options=()):
        slots = ("--slots", "1") if mode == "in-place" else ()
        return self.replica(name, layout, "--swap", mode, *slots, *options, reader_options=["stable", *reader_options])

    def refit(self, versions, replicas, *options):
        lines = self.publish(source_layout(), versions, replicas, *options)
        self.assertEqual([line.split(" ")[:2] for line in lines if line.startswith("ok ")],
                         [["ok", str(version)] for version in versions], lines)
        for replica in replicas:
            replica.wait_step(versions[-1])

    def wait_until(self, done):
        deadline = time.monotonic() + WAIT_S
        while not done():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def wait_ready(self, replica):
        self.wait_until(lambda: replica.admin("/readyz")[0] == 200)

    def test_versions_arrive_at_constant_addresses_also_from_other_members(self):
        for mode in MODES:
            replicas = [self.mode(f"{mode}-{i}", mode, engine_layout(2)) for i in range(2)]
            self.refit([1, 2, 3, 4], replicas)
            self.assertEqual(replicas[0].weights()["swap"], mode)

    def test_rollback_needs_no_transfer(self):
        for mode in ("copy", "remap"):
            replica = self.mode(mode, mode, engine_layout(2))
            self.refit([1, 2], [replica])
            landed = replica.call("GET", "/refit")[1]["bytes_done"]
            status, answer = replica.call("POST", "/rollback", {})
            self.assertEqual((status, answer["active"]["version"]), (200, 1))
            for reader in replica.readers.values():
                reader.wait_line("step 1 ", after=reader.wait_line("step 2 "))
            self.assertEqual(replica.call("GET", "/refit")[1]["bytes_done"], landed)
            self.assertEqual(replica.call("POST", "/v1/release", {})[0], 200)
            self.refit([3], [replica])

    def test_refitd_that_is_killed_and_comes_back_serves_at_the_same_addresses(self):
        for mode in MODES:
            replica = self.mode(mode, mode, engine_layout(2))
            self.refit([1, 2], [replica])
            replica.refitd.kill()
            replica.refitd.wait()
            replica.start()
            self.wait_ready(replica)
            self.assertEqual(replica.active(), 2)
            self.refit([3], [replica])

    def test_a_pin_held_in_the_pause_is_named_and_the_old_version_serves(self):
        for mode in MODES:
            held = self.path("held-" + mode)
            replica = self.mode(mode, mode, engine_layout(1), reader_options=[f"hold-file={held}"])
            self.refit([1], [replica])
            open(held, "w").close()
            replica.readers[0].wait_line("holding 1")
            lines = self.publish(source_layout(), [2], [replica], "deadline=3000")
            self.assertRegex("\n".join(lines), r"slot-pinned.*reader.*version 1|reader.*, which pins version 1")
            self.assertEqual(replica.active(), 1)
            os.unlink(held)
            self.refit([3], [replica])

    def test_a_refit_in_place_that_breaks_off_leaves_the_replica_not_ready_until_the_next(self):
        replica = self.mode("a", "in-place", engine_layout(2, scale=2), "--rate", "1MiB")
        lines = self.publish(source_layout(scale=2), [1], [replica])
        self.assertTrue(lines[0].startswith("ok 1 "), lines)
        self.wait_ready(replica)
        ranks = self.publish(source_layout(scale=2), [2], [replica], wait=False)
        replica.wait_session(lambda state: state["version"] == 2 and state["bytes_done"] > 0)
        replica.refitd.kill()
        for rank in ranks:
            rank.kill()
            rank.wait()
        replica.refitd.wait()
        replica.start()
        self.wait_torn(replica)
        lines = self.publish(source_layout(scale=2), [3], [replica])
        self.assertTrue(lines[0].startswith("ok 3 "), lines)
        self.wait_ready(replica)
        self.assertFalse(replica.weights()["torn"])
        self.assertIn("\nrefit_torn 0\n", replica.admin("/metrics")[1])

    def wait_torn(self, replica):
        self.wait_until(lambda: "refit again" in " ".join(replica.admin("/readyz")[1]["reasons"]))
        self.assertTrue(replica.weights()["torn"])
        status, answer = replica.admin("/readyz")
        self.assertEqual((status, answer["state"]), (503, "none"))
        self.assertIsNone(replica.weights()["active"])
        self.assertIn("\nrefit_torn 1\n", replica.admin("/metrics")[1])

    def test_an_engine_that_needs_its_addresses_is_refused_where_they_change(self):
        replica = self.replica("a", engine_layout(1), readers=False, reader_options=["stable"])
        replica.start_readers(wait=False)
        self.assertEqual(replica.readers[0].wait(), 1)
        with open(self.path("reader-a-0.log")) as log:
            self.assertIn("--swap copy", log.read())


if __name__ == "__main__":
    unittest.main()
