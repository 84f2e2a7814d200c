# SPDX-License-Identifier: Apache-2.0
"""Every pair of layouts of tests/layouts/cases refitted between real processes, over both transports; readers check every byte.

tests/layouts/test_cases.c proves that each document describes the memory of its framework; here its bytes move."""
import json
import os
import unittest

from harness import SystemTest

CASES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "layouts", "cases")
TOO_LARGE = {"huge"}  # 20 GB; planned only, in tests/layouts


def document(case, side):
    with open(os.path.join(CASES, f"{case}.{side}.json")) as file:
        return json.load(file)


class Layouts(SystemTest):
    def refit(self, case):
        replica = self.replica("a", document(case, "engine"))
        for version, transport in ((1, "tcp"), (2, "local"), (3, "tcp")):  # the third fills a slot that held the first
            lines = self.publish(document(case, "trainer"), [version], [replica], f"transport={transport}")
            self.assertTrue(lines and lines[0].startswith(f"ok {version} "), lines)
            _, _, _, needed, moved, _, path = lines[0].split(" ")
            self.assertEqual((needed, path), (moved, transport))
            replica.wait_step(version)


def add(case):
    def test(self):
        self.refit(case)
    setattr(Layouts, f"test_{case}", test)


for name in sorted(os.listdir(CASES)):
    if name.endswith(".trainer.json") and name.split(".")[0] not in TOO_LARGE:
        add(name.split(".")[0])


if __name__ == "__main__":
    unittest.main()
