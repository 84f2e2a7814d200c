# SPDX-License-Identifier: Apache-2.0
"""The least time of a topology, and the bytes it is made of."""
import json
import os
import subprocess
import unittest

import bound
import documents
import measure
import scenario

MB = 1_000_000


class Refit(unittest.TestCase):
    def test_the_trainers_egress_decides_when_its_links_are_few(self):
        found = bound.refit(100 * MB, {"t0": 100 * MB}, {f"r{i}": 100 * MB for i in range(8)}, dict.fromkeys(
            ["t0", *(f"r{i}" for i in range(8))], 50 * MB))
        self.assertAlmostEqual(found.seconds, 2.0)
        self.assertIn("trainer", found.lines()[0])

    def test_the_inflow_of_one_domain_decides_when_the_trainer_has_many_links(self):
        found = bound.refit(100 * MB, {f"t{i}": 25 * MB for i in range(4)}, {"r0": 100 * MB, "r1": 100 * MB},
                            {**dict.fromkeys(["t0", "t1", "t2", "t3", "r0"], 50 * MB), "r1": 25 * MB})
        self.assertAlmostEqual(found.seconds, 4.0)
        self.assertIn("due at r1", next(line for line in found.lines() if "decides" in line))

    def test_a_slow_link_of_one_trainer_node_decides_when_it_alone_holds_its_bytes(self):
        goodput = {"t0": 50 * MB, "t1": 5 * MB, "r0": 50 * MB}
        found = bound.refit(100 * MB, {"t0": 50 * MB, "t1": 50 * MB}, {"r0": 100 * MB}, goodput)
        self.assertAlmostEqual(found.seconds, 10.0)
        shared = bound.refit(100 * MB, {"t0": 0, "t1": 0}, {"r0": 100 * MB}, goodput)
        self.assertAlmostEqual(shared.seconds, 2.0)

    def test_all_that_comes_in_must_go_out_somewhere(self):
        nodes = [f"r{i}" for i in range(3)]
        found = bound.refit(100 * MB, {"t0": 100 * MB}, dict.fromkeys(nodes, 100 * MB),
                            {"t0": 100 * MB, "r0": 100 * MB, "r1": 1 * MB, "r2": 100 * MB})
        self.assertAlmostEqual(found.terms[3].seconds, 300 / 301)
        self.assertAlmostEqual(found.seconds, 100.0)

    def test_a_link_that_carries_nothing_is_named(self):
        with self.assertRaisesRegex(ValueError, "r0"):
            bound.refit(1, {"t0": 1}, {"r0": 1}, {"t0": 1, "r0": 0})


class GatherAndBroadcast(unittest.TestCase):
    def test_is_a_gather_of_what_is_missing_and_then_the_whole(self):
        goodput = dict.fromkeys(["t0", "t1", "t2", "t3", "r0"], 50 * MB)
        found = bound.gather_and_broadcast(100 * MB, 25 * MB, "t0", ["t0", "t1", "t2", "t3"], {"r0": 100 * MB}, goodput)
        self.assertAlmostEqual(found.seconds, 1.5 + 2.0)

    def test_needs_no_gather_from_one_rank(self):
        found = bound.gather_and_broadcast(100 * MB, 100 * MB, "t0", ["t0"], {"r0": 100 * MB}, {"t0": 50 * MB, "r0": 50 * MB})
        self.assertAlmostEqual(found.seconds, 2.0)


class Documents(unittest.TestCase):
    def layout(self, name):
        with open(os.path.join(scenario.HERE, name + ".json")) as file:
            return json.load(file)

    def test_each_scenarios_boxes_cover_its_weights(self):
        for name in scenario.names():
            found = scenario.load(name)
            for layout in (found.trainer_layout, found.engine_layout):
                sizes = documents.tensors(layout)
                held = sum(documents.box_volume(box) * sizes[tensor][0]
                           for tensor, ranks in documents.boxes(layout).items() for box in set(ranks.values()))
                self.assertEqual(held, found.weights, name)

    def test_uneven_cuts_are_those_of_torch_chunk(self):
        layout = {"meshes": {"m": {"axes": ["a"], "shape": [4]}},
                  "entries": [{"tensor": "w", "dtype": "F32", "shape": [5, 3], "mesh": "m", "placements": ["Shard(0)"]}]}
        self.assertEqual(documents.boxes(layout), {"w": {0: ((0, 2), (0, 3)), 1: ((2, 2), (0, 3)), 2: ((4, 1), (0, 3))}})

    def test_what_one_node_alone_holds_leaves_out_copies_elsewhere(self):
        layout = {"meshes": {"m": {"axes": ["dp", "tp"], "shape": [2, 2]}}, "entries": [
            {"tensor": "cut", "dtype": "F32", "shape": [8], "mesh": "m", "placements": ["Replicate", "Shard(0)"]},
            {"tensor": "whole", "dtype": "F32", "shape": [8], "mesh": "m", "placements": ["Replicate", "Replicate"]}]}
        self.assertEqual(documents.exclusive_bytes(layout, ["a", "b", "c", "d"]), {"a": 0, "b": 0, "c": 0, "d": 0})
        self.assertEqual(documents.exclusive_bytes(layout, ["a", "b", "a", "b"]), {"a": 16, "b": 16})
        self.assertEqual(documents.held_bytes(layout, ["a", "b", "a", "b"]), {"a": 48, "b": 48})

    def test_counts_the_bytes_that_the_library_plans(self):
        for pair in (("layout-rows2", "layout-columns4"), ("layout-tp4", "layout-whole")):
            paths = [os.path.join(scenario.HERE, name + ".json") for name in pair]
            program = os.path.join(os.environ["REFIT_BUILD"], "cli", "refit")
            plan = json.loads(subprocess.run([program, "plan", "--source-layout", paths[0], "--layout", paths[1], "--output", "json"],
                                             check=True, capture_output=True, text=True).stdout)
            self.assertEqual(plan["bytes"], documents.weights_bytes(self.layout(pair[1])))


class Measure(unittest.TestCase):
    def test_a_median_is_the_middle(self):
        self.assertEqual(measure.median([3, 1, 2]), 2)
        self.assertEqual(measure.median([4, 1, 2, 3]), 2.5)

    def test_payload_is_what_is_left_without_header_and_acknowledgements(self):
        link = measure.Link(goodput=1, header=0.01, answer=0.002, share=1)
        self.assertAlmostEqual(link.payload(1010, 0), 1000)
        self.assertAlmostEqual(link.payload(2, 1010), 0)
        self.assertAlmostEqual(link.payload(1012, 1010), 1000)


if __name__ == "__main__":
    unittest.main()
