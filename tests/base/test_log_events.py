# SPDX-License-Identifier: Apache-2.0
"""docs/logs.md lists every event of the code, and no other."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = ("base", "layouts", "memory", "checkpoint", "tls", "transport", "engine", "receiver", "sender", "health", "sidecar", "cli", "drivers")
EVENT = re.compile(r'\brefit_log_(?:event|limited|write)\(\s*REFIT_LOG_(\w+),\s*((?:"[^"]*"\s*)+)')


def said():
    """(event, module) and its levels."""
    events = {}
    for module in MODULES:
        for path in sorted((ROOT / module).rglob("*.c")):
            for level, literals in EVENT.findall(path.read_text()):
                message = "".join(re.findall(r'"([^"]*)"', literals))
                events.setdefault((message, module), set()).add(level.lower())
    return events


class Events(unittest.TestCase):
    def test_the_page_lists_every_event_and_no_other(self):
        page = (ROOT / "docs" / "logs.md").read_text()
        listed = {(message, module): set(levels.split(", "))
                  for message, levels, module in re.findall(r"^\| `([^`]+)` \| ([a-z, ]+) \| (\w+) \|$", page, re.M)}
        events = said()
        self.assertGreater(len(events), 50)
        self.assertEqual(listed, events)


if __name__ == "__main__":
    unittest.main()
