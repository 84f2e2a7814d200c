# SPDX-License-Identifier: Apache-2.0
"""What is made of results: the section of the page, its update in part, the chart."""
import json
import os
import tempfile
import unittest
import xml.dom.minidom

import report


def transfer(scenario="1-pair", method="refit direct", seconds=2.0, **more):
    return {"scenario": scenario, "title": "A & B", "method": method, "seconds": seconds, "runs": [seconds], "void": 0, "idle": 0.5,
            "bound": 2.0, "ratio": seconds / 2, "egress": 1.001, "command": "python3 bench/cluster 1-pair", **more}


FAULT = transfer("8-kill", seconds=2.2, undisturbed=2.0, goal=1.1, excess=0.01)
REQUESTS = {"scenario": "a-requests", "title": "requests", "method": "refit direct", "goal": 1.25, "acquire_goal_ns": 1000, "idle": 0.5,
            "void": 0, "p50_us": {"quiet": 800, "refit": 810}, "p99_us": {"quiet": 1000, "refit": 1200},
            "acquire_p999_ns": {"quiet": 80, "refit": 90}, "ratios": {"refit": 1.2}, "command": "python3 bench/cluster a-requests"}


class Report(unittest.TestCase):
    def page(self, text):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        for directory in ("docs", os.path.join("bench", "cluster")):
            os.makedirs(os.path.join(scratch.name, directory))
        with open(os.path.join(scratch.name, report.PAGE), "w") as file:
            file.write(text)
        return scratch.name

    def read(self, root, name):
        with open(os.path.join(root, name)) as file:
            return file.read()

    def test_a_part_measured_anew_replaces_its_own_rows_alone(self):
        root = self.page(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
        report.update(root, [transfer(), FAULT, REQUESTS])
        report.update(root, [transfer(seconds=3.0)])
        page = self.read(root, report.PAGE)
        self.assertTrue(page.startswith(f"before\n{report.BEGIN}\n") and page.endswith(f"{report.END}\nafter\n"))
        self.assertIn("| 3.00 | 2.00 | 1.500 |", page)
        self.assertNotIn("old", page)
        self.assertIn("beside a refit", page)
        self.assertEqual(len(json.loads(self.read(root, report.RESULTS))), 3)

    def test_a_page_without_its_marks_is_left_alone(self):
        root = self.page("nothing\n")
        with self.assertRaises(SystemExit):
            report.update(root, [transfer()])
        self.assertEqual(self.read(root, report.PAGE), "nothing\n")
        self.assertFalse(os.path.exists(os.path.join(root, report.RESULTS)))

    def test_gather_and_broadcast_is_held_against_its_byte_counts(self):
        text = report.section([transfer(), transfer(method="gloo chain", seconds=3.8, allowed=2.0)])
        self.assertIn("| refit direct | gloo chain | 1.90 | 2.00 | 0.95 |", text)

    def test_void_runs_are_said(self):
        self.assertIn("VOID", report.summary(transfer(void=1)))
        self.assertIn("(void)", report.section([transfer(void=1)]))

    def test_the_chart_is_svg_with_a_bar_for_each_result(self):
        root = self.page(f"{report.BEGIN}\n{report.END}\n")
        report.update(root, [transfer(), transfer(method="gloo direct", seconds=2.1), transfer("2-other", seconds=16.0), FAULT])
        drawn = xml.dom.minidom.parseString(self.read(root, report.CHART))
        self.assertEqual(len(drawn.getElementsByTagName("rect")), 3)


if __name__ == "__main__":
    unittest.main()
