# SPDX-License-Identifier: Apache-2.0
"""What a machine gives and takes: memory beyond the slots, slots that do not fit, and a wall clock that leaps."""
import os
import subprocess
import sys
import unittest

from harness import SystemTest, WAIT_S, engine_layout, source_layout, tool

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import memory  # noqa: E402

SANITIZED = os.environ.get("REFIT_TEST_SLOWDOWN", "1") != "1"
MIB = 1 << 20


class Memory(SystemTest):
    @unittest.skipIf(SANITIZED, "a sanitizer's own memory is anonymous too")
    def test_memory_beyond_slots_stays_below_64_mib_whatever_the_models_size(self):
        memory.HIDDEN //= 4  # as many tensors and boxes with fewer bytes
        _, peaks = memory.measure(os.environ["REFIT_BUILD"], self.scratch.name, sources=2, ranks=32, versions=(1, 2))
        self.assertGreater(min(peaks), 0)
        self.assertLess(max(peaks), 64 * MIB, [f"{peak / MIB:.1f} MiB" for peak in peaks])


class Slots(SystemTest):
    def refused(self, slot_bytes, before=()):
        """refitd ends by itself, with an error and no kill; what it said."""
        done = subprocess.run([*before, tool("sidecar", "refitd"), "--socket", self.path("s"), "--slots", "2", "--slot-bytes", slot_bytes,
                               "--control", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", "127.0.0.1:0"],
                              capture_output=True, text=True, check=False, timeout=WAIT_S)
        self.assertEqual(done.returncode, 1, done.stderr)
        said = done.stdout + done.stderr
        self.assertIn("raise the limit", said)
        self.assertFalse(os.path.exists(self.path("s")), "a socket was left behind")
        return said

    def test_slots_beyond_the_machine_are_refused_with_numbers(self):
        self.assertIn(f"{1 << 50} bytes needed", self.refused("1024TiB"))

    def test_slots_beyond_the_cgroup_are_refused_with_its_name(self):
        for root, file in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
            group = os.path.join(root, f"refit-system-{os.getpid()}")
            limit = os.path.join(group, file)
            try:
                os.mkdir(group)
            except OSError:
                continue
            try:
                if os.path.exists(limit):
                    with open(limit, "w") as out:
                        out.write(str(64 * MIB))
                    said = self.refused("256MiB", ("sh", "-c", f"echo $$ >{group}/cgroup.procs && exec \"$@\"", "--"))
                    self.assertIn(f"{256 * MIB} bytes needed", said)
                    self.assertIn(group, said)
                    return
            except OSError:
                continue
            finally:
                os.rmdir(group)
        self.skipTest("no cgroup with a memory limit can be made here (needs root and a writable cgroup file system)")


@unittest.skipIf(SANITIZED, "a sanitizer has to be preloaded first")
class Clock(SystemTest):
    def test_a_wall_clock_that_leaps_changes_nothing(self):
        leaping = os.path.abspath(tool("tests", "system", "jumping_clock.so"))
        self.assertTrue(os.path.exists(leaping))
        os.environ["LD_PRELOAD"] = leaping
        try:
            replica = self.replica("a", engine_layout(2), "--staged-ttl", "20s")
            for version in (1, 2, 3):
                lines = self.publish(source_layout(), [version], [replica])
                self.assertTrue(lines and lines[0].startswith(f"ok {version} "), lines)
                replica.wait_step(version)
            self.assertEqual(replica.call("POST", "/rollback", {})[0], 200)
            self.assertEqual(replica.admin("/readyz")[0], 200)
            self.assertEqual(replica.admin("/livez")[0], 200)
            # A lead that was just heard stays one, whatever the clock says.
            self.assertEqual(replica.call("POST", "/v1/lead", {"name": "one", "takeover": True})[0], 200)
            self.assertEqual(replica.call("POST", "/v1/lead", {"name": "two"})[0], 409)
        finally:
            del os.environ["LD_PRELOAD"]


if __name__ == "__main__":
    unittest.main()
