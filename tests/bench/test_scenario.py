# SPDX-License-Identifier: Apache-2.0
"""Scenario files: the ones that come with the tool are right, and bad ones are refused by name before anything is started."""
import copy
import json
import os
import subprocess
import sys
import tempfile
import unittest

import scenario

W = {"tensor": "w", "dtype": "BF16", "shape": [64, 64], "mesh": "m", "placements": ["Shard(0)"]}


def layout(ranks, **changes):
    return {"format": "refit-layout/1", "ranks": ranks, "meshes": {"m": {"axes": ["x"], "shape": [ranks]}}, "entries": [{**W, **changes}]}


GOOD = {"title": "a pair", "rate": "400mbit", "trainer": {"layout": layout(2), "nodes": ["t0", "t1"]}, "engine": {"layout": layout(1)},
        "replicas": {"r0": "n0", "r1": "n1"}}


class Files(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)

    def write(self, document):
        path = os.path.join(self.scratch.name, "tried.json")
        with open(path, "w") as file:
            file.write(document if isinstance(document, str) else json.dumps(document))
        return path

    def changed(self, *path, to):
        document = copy.deepcopy(GOOD)
        inner = document
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = to
        return document

    def refused(self, document, *texts):
        with self.assertRaises(scenario.ScenarioError) as caught:
            scenario.load(self.write(document))
        for text in ("tried.json", *texts):
            self.assertIn(text, str(caught.exception))

    def test_a_good_one_is_read(self):
        found = scenario.load(self.write(GOOD))
        self.assertEqual(found.weights, 8192)
        self.assertEqual(found.links, dict.fromkeys(["t0", "t1", "n0", "n1"], "400mbit"))
        self.assertEqual(found.due(), {"n0": 8192, "n1": 8192})

    def test_replicas_on_one_node_take_each_byte_once(self):
        self.assertEqual(scenario.load(self.write(self.changed("replicas", to={"r0": "n0", "r1": "n0"}))).due(), {"n0": 8192})

    def test_links_that_differ_are_kept_apart(self):
        found = scenario.load(self.write({**GOOD, "rates": {"n1": "1gbit"}}))
        self.assertEqual((found.links["n0"], found.links["n1"]), ("400mbit", "1gbit"))

    def test_all_that_come_with_the_tool_are_good(self):
        for name in scenario.names():
            self.assertGreater(scenario.load(name).weights, 0)

    def test_bad_ones_are_refused_by_name(self):
        self.refused("{", "is no JSON")
        self.refused({**GOOD, "speed": 1}, '"speed"', "known")
        self.refused({k: v for k, v in GOOD.items() if k != "replicas"}, '"replicas" is missing')
        self.refused(self.changed("rate", to="fast"), "rate", "'fast'")
        self.refused({**GOOD, "rates": {"x9": "1gbit"}}, "x9")
        self.refused(self.changed("trainer", "nodes", to=["t0"]), "1 nodes", "2 ranks")
        self.refused(self.changed("trainer", "nodes", to=["t0", "T 1"]), "T 1")
        self.refused(self.changed("trainer", "nodes", to=["t0", "bridge"]), "bridge")
        self.refused(self.changed("replicas", to={"r0": "t0"}), "t0", "one or the other")
        self.refused(self.changed("replicas", to={}), "replicas")
        self.refused(self.changed("trainer", "layout", to="absent.json"), "absent.json")
        self.refused(self.changed("trainer", "layout", to={"format": "x"}), "refit-layout/1")
        self.refused(self.changed("trainer", "layout", to=layout(2, placements=["Partial"])), "Partial")
        self.refused(self.changed("engine", "layout", to=layout(1, shape=[64, 65])), "tensor w")
        self.refused({**GOOD, "peers": ["ring"]}, "ring", "chain")
        self.refused({**GOOD, "goal": 0.5}, "goal", "0.5")
        self.refused({**GOOD, "fault": {"kind": "burn", "replica": "r0"}}, "burn", "kill")
        self.refused({**GOOD, "fault": {"kind": "kill", "replica": "r7"}}, "r7", "r0")
        self.refused({**GOOD, "requests": {"replica": "r0", "hz": 0}}, "requests.hz")

    def test_the_command_says_it_and_ends_with_2(self):
        program = os.path.dirname(os.path.abspath(scenario.__file__))
        done = subprocess.run([sys.executable, program, self.write({**GOOD, "rate": "0mbit"})], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("0mbit", done.stderr)


if __name__ == "__main__":
    unittest.main()
