# SPDX-License-Identifier: Apache-2.0
"""Every example lints, renders and is accepted by the API's schema; what refitd is told exists."""
import json
import os
import subprocess
import unittest

import chart


def setUpModule():
    chart.require_tools()


class Examples(unittest.TestCase):
    def each(self):
        self.assertGreaterEqual(len(chart.EXAMPLES), 5)
        return list(chart.EXAMPLES)

    def test_lint_finds_nothing(self):
        for name in self.each():
            code, out, err = chart.helm("lint", "--strict", chart.CHART, "-f", chart.EXAMPLES[name])
            self.assertEqual(code, 0, out + err)
            self.assertNotIn("[WARNING]", out + err, name)

    def test_packages(self):
        import tempfile
        with tempfile.TemporaryDirectory() as directory:
            code, out, err = chart.helm("package", chart.CHART, "--destination", directory)
            self.assertEqual(code, 0, out + err)
            packed = os.listdir(directory)
            self.assertEqual(len(packed), 1)
            self.assertEqual(chart.template("-f", chart.EXAMPLES["cpu-native"])[1],
                             chart.helm("template", "rel", os.path.join(directory, packed[0]), "--namespace", "serving",
                                        "-f", chart.EXAMPLES["cpu-native"])[1])

    def test_every_manifest_fits_the_schema_of_the_api(self):
        import kubernetes_validate
        foreign = {"PodMonitor", "Certificate"}  # of other projects: no schema at hand
        seen = set()
        for name in self.each():
            for manifest in chart.example(name):
                seen.add(manifest["kind"])
                if manifest["kind"] not in foreign:
                    kubernetes_validate.validate(manifest, "1.34", strict=True)
                    if name != "native-dra":  # the oldest that Chart.yaml allows; claims of this form are newer
                        kubernetes_validate.validate(manifest, "1.29", strict=True)
        self.assertLessEqual({"Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount", "Pod",
                              "ResourceClaimTemplate", "PodMonitor", "Certificate"}, seen)

    def test_the_schema_would_notice(self):
        import kubernetes_validate
        manifest = chart.only(chart.example("cpu-native"), "Deployment")
        manifest["spec"]["template"]["spec"]["containers"][0]["imagePulPolicy"] = "Never"
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(manifest, "1.34", strict=True)

    def test_refitd_knows_every_option_that_the_chart_gives_it(self):
        refitd = os.path.join(os.environ.get("REFIT_BUILD", os.path.join(chart.ROOT, "build", "dev")), "sidecar", "refitd")
        if not os.access(refitd, os.X_OK):
            self.skipTest(f"{refitd} is not built")
        options = subprocess.run([refitd, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
        known = {line.split()[0][2:] for line in options.splitlines() if line.startswith("  --")}
        without_drivers = not [name for name in known if name.startswith("engine")]
        driven = False
        for name in self.each():
            spec = chart.pod_spec(chart.example(name))
            given = []
            for c in spec.get("initContainers", []) + spec["containers"]:
                if c["name"] == "refitd":
                    given = [argument[2:].split("=")[0] for argument in c["args"]]
                if "exec" in c.get("command", []) and c["name"] == "engine":
                    given = [e["name"][6:].lower().replace("_", "-") for e in c["env"] if e["name"].startswith("REFIT_")]
            self.assertGreater(len(given), 8, name)
            unknown = set(given) - known
            if without_drivers and unknown <= {"engine", "engine-dir", "engine-load"}:
                driven = True
                continue
            self.assertEqual(sorted(unknown), [], name)
        if driven:
            self.skipTest("this refitd drives no engines over HTTP: examples of vLLM and SGLang not compared")

    def test_refitd_takes_the_values_of_the_chart(self):
        refitd = os.path.join(os.environ.get("REFIT_BUILD", os.path.join(chart.ROOT, "build", "dev")), "sidecar", "refitd")
        if not os.access(refitd, os.X_OK):
            self.skipTest(f"{refitd} is not built")
        spec = chart.pod_spec(chart.example("cpu-native", "--set", "tls.mode=none,auth.tokens.secret=,auth.insecure=true,sidecar.rate=2Gi"))
        arguments = [a.replace("$(POD_IP)", "10.0.0.7") for a in chart.container(spec, "refitd")["args"]]
        done = subprocess.run([refitd, *arguments, "--print-config"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for wanted in ("slot-bytes = 128MiB", "slots = 2", "rate = 2GiB", "drain-timeout = 10s", 'advertise = "10.0.0.7"'):
            self.assertIn(wanted, done.stdout)


class Files(unittest.TestCase):
    def test_readme_is_up_to_date(self):
        done = subprocess.run([os.path.join(chart.ROOT, "scripts", "chart-readme.py"), chart.CHART, "--check"],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_value_is_in_the_closed_schema(self):
        import yaml
        with open(os.path.join(chart.CHART, "values.yaml"), encoding="utf-8") as file:
            values = yaml.safe_load(file)
        with open(os.path.join(chart.CHART, "values.schema.json"), encoding="utf-8") as file:
            schema = json.load(file)
        self.compare(values, schema, "")

    def compare(self, values, schema, where):
        self.assertIs(schema["additionalProperties"], False, where or "the root")
        self.assertEqual(set(values), set(schema["properties"]) - ({"global"} if not where else set()), where)
        for key, value in values.items():
            below = schema["properties"][key]
            if isinstance(value, dict) and "properties" in below:
                self.compare(value, below, f"{where}.{key}")

    def test_plain_manifests_are_up_to_date(self):
        with open(os.path.join(chart.ROOT, "deploy", "kubernetes", "refit.yaml"), encoding="utf-8") as file:
            kept = file.read()
        made = subprocess.run([os.path.join(chart.ROOT, "scripts", "plain-manifests.sh"), chart.HELM], capture_output=True,
                              text=True, timeout=60, check=True).stdout
        self.assertEqual(kept, made, "run scripts/plain-manifests.sh build/tools/bin/helm > deploy/kubernetes/refit.yaml")

    def test_chart_and_project_have_one_version(self):
        import re
        import yaml
        with open(os.path.join(chart.CHART, "Chart.yaml"), encoding="utf-8") as file:
            meta = yaml.safe_load(file)
        with open(os.path.join(chart.ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
            version = re.search(r"project\(refit VERSION ([0-9.]+)", file.read()).group(1)
        self.assertEqual(meta["appVersion"], version)


if __name__ == "__main__":
    unittest.main()
