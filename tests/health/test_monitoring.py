# SPDX-License-Identifier: Apache-2.0
"""What monitoring systems make of refitd: its metrics in both forms, the alert rules, the dashboard."""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from harness import SystemTest, engine_layout, source_layout  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MONITORING = os.path.join(ROOT, "deploy", "monitoring")
# Not refitd's: what Prometheus adds itself.
PROMETHEUS_OWN = {"up", "ALERTS"}


def read(*parts):
    with open(os.path.join(ROOT, *parts)) as file:
        return file.read()


def promtool(*arguments, text=None):
    if not shutil.which("promtool"):
        raise unittest.SkipTest("promtool is not here: apt-get install prometheus, or scripts/setup.sh tools")
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, check=False, cwd=MONITORING)
    return done.returncode, done.stdout + done.stderr


def documented():
    """The names of samples that the table of docs/metrics.md has, with their labels."""
    names = {}
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*) \|", read("docs", "metrics.md"), re.M):
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            names[name + suffix] = set(filter(None, labels.split(", "))) | ({"le"} if suffix == "_bucket" else set())
    return names


def used(expression):
    """The metrics that a PromQL expression names: words before a selector or a range, and bare words with our prefixes."""
    bare = re.sub(r'"[^"]*"', "", expression)
    return set(re.findall(r"\b((?:refit|process)_\w+)\b(?=\{|\[|[^\w({]|$)", bare)) | set(re.findall(r"\b(up|ALERTS)\b(?=\{)", bare))


class Metrics(SystemTest):
    def scrape(self, replica, accept):
        request = urllib.request.Request(f"http://127.0.0.1:{replica.ports['admin']}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    def serving(self):
        replica = self.replica("a", engine_layout(2))
        lines = self.publish(source_layout(), [1, 2], [replica])
        self.assertTrue(lines and lines[0].startswith("ok 1 "), lines)
        return replica

    def test_both_forms_are_what_their_parsers_take(self):
        replica = self.serving()
        kind, text = self.scrape(replica, "*/*")
        self.assertEqual(kind, "text/plain; version=0.0.4; charset=utf-8")
        self.assertIn("\nrefit_version 2\n", text)
        self.assertIn('refit_refits_total{outcome="committed",reason=""} 2\n', text)
        self.assertIn('refit_phase_duration_seconds_count{phase="transfer"} 2\n', text)
        self.assertIn("refit_swap_duration_seconds_count 2\n", text)
        needed, moved = (sum(map(int, re.findall(rf"^{name}(?:{{.*}})? (\d+)$", text, re.M)))
                         for name in ("refit_needed_bytes_total", "refit_moved_bytes_total"))
        self.assertGreater(needed, 0)
        self.assertEqual(needed, moved)
        kind, open_text = self.scrape(replica, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
        self.assertEqual(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8")
        self.assertTrue(open_text.endswith("\n# EOF\n"))
        self.assertEqual(self.scrape(replica, "application/openmetrics-text;q=0, */*")[0][:10], "text/plain")
        code, said = promtool("check", "metrics", text=text)
        self.assertEqual((code, said), (0, ""))
        self.parse_openmetrics(open_text)

    def parse_openmetrics(self, text):
        sys.path.append("/usr/lib/python3/dist-packages")  # of Debian, whatever python3 this is
        try:
            from prometheus_client.openmetrics.parser import text_string_to_metric_families
        except ImportError:
            self.skipTest("no OpenMetrics parser here: apt-get install python3-prometheus-client, or scripts/setup.sh tools")
        finally:
            sys.path.pop()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        self.assertEqual(families["refit_phase_duration_seconds"].type, "histogram")
        self.assertEqual(families["refit_phase_duration_seconds"].unit, "seconds")
        self.assertEqual(families["refit_weights"].type, "info")
        self.assertEqual(families["refit_weights"].samples[0].labels["version"], "2")
        self.assertEqual(len(families["refit_weights"].samples[0].labels["digest"]), 64)

    def test_the_label_sets_are_bounded_and_documented(self):
        names, replica = documented(), self.serving()
        before = self.scrape(replica, "*/*")[1]
        lines = self.publish(source_layout(), [3, 4], [replica], "takeover")
        self.assertTrue(lines and lines[0].startswith("ok 3 "), lines)
        after = self.scrape(replica, "*/*")[1]
        for line in after.splitlines():
            if line.startswith("#"):
                continue
            name, labels = re.match(r"(\w+)(?:\{(.*)\})? ", line).groups()
            self.assertEqual(set(re.findall(r'(\w+)="', labels or "")), names[name], line)
        self.assertEqual(len(before.splitlines()), len(after.splitlines()))  # refits make no new series


class Files(unittest.TestCase):
    def test_the_alerts_are_rules(self):
        code, said = promtool("check", "rules", "alerts.yaml")
        self.assertEqual(code, 0, said)

    def test_each_alert_fires_and_is_silent_as_its_tests_say(self):
        tests = read("deploy", "monitoring", "alerts.test.yaml")
        alerts = re.findall(r"- alert: (\w+)", read("deploy", "monitoring", "alerts.yaml"))
        self.assertGreater(len(alerts), 10)
        for alert in alerts:
            for what in ("fires", "is silent"):
                self.assertIn(f"- name: {alert} {what}\n", tests)
        code, said = promtool("test", "rules", "alerts.test.yaml")
        self.assertEqual(code, 0, said)

    def test_alerts_and_dashboard_name_metrics_that_exist(self):
        text = read("deploy", "monitoring", "alerts.yaml")
        expressions = re.findall(r"^ {8}expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", text, re.M)
        self.assertEqual(len(expressions), text.count("- alert:"))
        dashboard = json.loads(read("deploy", "monitoring", "dashboard.json"))
        targets = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
        self.assertGreater(len(targets), 15)
        known = set(documented()) | PROMETHEUS_OWN
        for expression in [first or second for first, second in expressions] + targets:
            names = used(expression)
            self.assertTrue(names, expression)
            self.assertLessEqual(names, known, expression)

    def test_the_dashboards_expressions_are_promql(self):
        dashboard = json.loads(read("deploy", "monitoring", "dashboard.json"))
        rules = [{"record": f"panel:{i}", "expr": target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")}
                 for i, target in enumerate(t for panel in dashboard["panels"] for t in panel.get("targets", ()))]
        code, said = promtool("check", "rules", "--lint=none", "/dev/stdin",
                              text=json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
        self.assertEqual(code, 0, said)

    def test_panels_have_their_own_place_and_id(self):
        dashboard = json.loads(read("deploy", "monitoring", "dashboard.json"))
        taken = set()
        for panel in dashboard["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(cells & taken, panel["title"])
            self.assertLessEqual(at["x"] + at["w"], 24)
            taken |= cells
        ids = [panel["id"] for panel in dashboard["panels"]]
        self.assertEqual(len(ids), len(set(ids)))


if __name__ == "__main__":
    unittest.main()
