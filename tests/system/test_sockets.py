# SPDX-License-Identifier: Apache-2.0
"""Exact bytes, counted by the kernel: a refit inside a network namespace of its own, whose loopback carries nothing else."""
import os
import subprocess
import sys
import unittest

from harness import SystemTest, engine_layout, source_layout


def loopback_bytes():
    with open("/proc/net/dev") as file:
        fields = next(line for line in file if line.strip().startswith("lo:")).split(":")[1].split()
    return int(fields[8])  # transmitted


class Sockets(SystemTest):
    def test_no_byte_crosses_that_nobody_needs(self):
        if os.environ.get("REFIT_IN_NETNS") != "1":
            inside = dict(os.environ, REFIT_IN_NETNS="1")
            done = subprocess.run(["unshare", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "--", sys.executable, "-m",
                                   "unittest", "test_sockets"], env=inside, capture_output=True, text=True, check=False)
            if "Operation not permitted" in done.stderr:
                self.skipTest("a network namespace can't be made here (needs root)")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return
        replica = self.replica("a", engine_layout(2, scale=8))
        source = source_layout(3, scale=8)
        self.publish(source, [1], [replica], "transport=tcp")
        before = loopback_bytes()
        line = self.publish(source, [2], [replica], "transport=tcp")[0].split(" ")
        carried = loopback_bytes() - before
        self.assertEqual(line[0], "ok", line)
        needed = int(line[3])
        self.assertGreater(needed, 20 << 20)
        self.assertEqual(needed, int(line[4]))
        # Beyond the weights: TCP and IP headers, acknowledgements, and the control API with its documents.
        self.assertGreaterEqual(carried, needed)
        self.assertLess(carried, needed * 1.01 + 300_000, f"{carried} bytes for {needed} needed")


if __name__ == "__main__":
    unittest.main()
