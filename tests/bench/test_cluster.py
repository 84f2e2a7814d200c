# SPDX-License-Identifier: Apache-2.0
"""A small scenario on a real box: needs root and a kernel with namespaces and tbf, else it is skipped and says why."""
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import netns
import run
import scenario
from test_scenario import GOOD, layout

BUILD = os.environ["REFIT_BUILD"]
TOOL = os.path.dirname(os.path.abspath(netns.__file__))
WHY_NOT = netns.missing()


def namespaces(tag):
    return glob.glob(f"/run/netns/{netns.PREFIX}-{tag}-*")


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Cluster(unittest.TestCase):
    def small(self, **more):
        """The path of a scenario of 2 MB."""
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        path = os.path.join(scratch.name, "small.json")
        shape = {"shape": [1024, 1024]}
        with open(path, "w") as file:
            json.dump({**GOOD, "trainer": {**GOOD["trainer"], "layout": layout(2, **shape)}, "engine": {"layout": layout(1, **shape)},
                       **more}, file)
        return path

    def test_a_refit_is_measured_and_its_bytes_are_counted_by_the_kernel(self):
        found = run.refit(scenario.load(self.small()), BUILD, "direct", 1, lambda line: None)
        self.assertEqual(len(found["runs"]), 1)
        self.assertGreater(found["seconds"], 0)
        self.assertGreater(found["egress"], 1.9)  # direct: once for each of two replicas
        self.assertLess(found["egress"], 2.5)

    def disturbed(self, kind):
        """Ends with one more refit, which every replica commits and compares."""
        path = self.small(rate="8mbit", fault={"kind": kind, "replica": "r1", "after": 0})
        found = run.fault(scenario.load(path), BUILD, "direct", 1, lambda line: None)
        self.assertEqual(len(found["runs"]), 1)

    def test_a_replica_that_is_killed_mid_refit_comes_back(self):
        self.disturbed("kill")

    def test_a_replica_whose_link_is_cut_mid_refit_comes_back(self):
        self.disturbed("cut")

    def test_a_box_of_a_killed_process_is_swept_by_the_next_and_a_live_one_is_left(self):
        hold = "import netns, sys\nwith netns.Box({'a': '100mbit'}) as box:\n    print(box.tag, flush=True)\n    sys.stdin.read()\n"
        held = [subprocess.Popen([sys.executable, "-c", hold], cwd=TOOL, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                for _ in range(2)]
        tags = [process.stdout.readline().strip() for process in held]
        self.addCleanup(held[0].stdout.close)
        held[0].kill()
        held[0].communicate()
        self.assertEqual(len(namespaces(tags[0])), 2)
        with netns.Box({"b": "100mbit"}):
            self.assertEqual(namespaces(tags[0]), [])
            self.assertEqual(len(namespaces(tags[1])), 2)
        held[1].communicate("")
        self.assertEqual(namespaces(tags[1]), [])

    def test_a_signal_ends_a_run_and_leaves_nothing(self):
        tool = subprocess.Popen([sys.executable, TOOL, self.small(), "--build", BUILD, "--runs", "1000"], stdout=subprocess.PIPE, text=True)
        with tool.stdout as lines:
            tag = next(line for line in lines if line.startswith("box ")).split()[1].rstrip(":")
            next(line for line in lines if "egress" in line and "weights" in line)
            self.assertNotEqual(namespaces(tag), [])
            tool.send_signal(signal.SIGTERM)
            for _ in lines:
                pass
        self.assertEqual(tool.wait(), 128 + signal.SIGTERM)
        self.assertEqual(namespaces(tag), [])


if __name__ == "__main__":
    unittest.main()
