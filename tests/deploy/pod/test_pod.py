# SPDX-License-Identifier: Apache-2.0
"""The rendered example, really run: two containers, two users, one volume; refits, restarts, probes, the end.

The tests are one story and run in order of their names.
"""
import json
import os
import signal
import subprocess
import time
import unittest

import pod as pods
from pod import ENGINE, REFITD, chart, wait_for

IMAGE_MAX = 20 << 20


class ThePod(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        pods.require_podman()
        cls.pod = pods.Pod()
        cls.addClassCleanup(cls.pod.stop)
        cls.pod.build_images()
        cls.pod.try_host()
        cls.cold = cls.pod.make_checkpoints()
        cls.pod.render()
        cls.started = time.monotonic()
        cls.pod.start()
        cls.engine_port = chart.container(cls.pod.spec, "engine")["ports"][0]["containerPort"]

    def load(self):
        load = pods.Load(self.pod.pid(ENGINE), self.engine_port, self.cold)
        self.addCleanup(load.ending.set)
        return load

    def push(self, version):
        """A refit by `refit push` in the sidecar's container; the checkpoint is there read-only."""
        return self.pod.exec(REFITD, "/opt/refit/bin/refit", "push", f"/checkpoints/v{version}.safetensors", "--version", str(version),
                             "--to", "127.0.0.1:7070")

    def version(self):
        return ((self.pod.get(7070, "/v1/weights")[1] or {}).get("active") or {}).get("version")

    def status(self, container):
        with open(f"/proc/{self.pod.pid(container)}/status", encoding="utf-8") as file:
            return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)

    # --- the start ---------------------------------------------------------------------------------------------------

    def test_10_probes_of_the_manifest_pass_in_their_order(self):
        wait_for("the startup probe", lambda: self.pod.probe("refitd", "startupProbe"))
        self.assertTrue(self.pod.probe("refitd", "livenessProbe"))
        wait_for("the engine's startup probe", lambda: self.pod.probe("engine", "startupProbe"))
        wait_for("readiness, with the initial checkpoint", lambda: self.pod.probe("refitd", "readinessProbe"))
        print(f"\n  pod start to ready: {time.monotonic() - self.started:.2f} s", flush=True)
        self.assertTrue(self.pod.probe("engine", "readinessProbe"))
        self.assertEqual(self.version(), 1)

    def test_11_both_run_as_the_manifest_says(self):
        ids = {}
        for container, name in ((REFITD, "refitd"), (ENGINE, "engine")):
            status = self.status(container)
            context = chart.container(self.pod.spec, name)["securityContext"]
            ids[name] = status["Uid"].split()[0]
            self.assertEqual(status["Uid"].split(), [str(context["runAsUser"])] * 4)
            self.assertEqual(status["Gid"].split(), [str(context["runAsGroup"])] * 4)
            for capabilities in ("CapEff", "CapPrm", "CapBnd"):
                self.assertEqual(int(status[capabilities], 16), 0, capabilities)
            self.assertEqual(status["NoNewPrivs"], "1")
            with open(f"/proc/{self.pod.pid(container)}/mountinfo", encoding="utf-8") as file:
                mounts = {line.split()[4]: line.split()[5].split(",") for line in file}
            self.assertIn("ro", mounts["/"])
            self.assertIn("ro" if name == "engine" else "rw", mounts["/run/refit"])
        self.assertNotEqual(ids["refitd"], ids["engine"])
        namespaces = {kind: {os.readlink(f"/proc/{self.pod.pid(c)}/ns/{kind}") for c in (REFITD, ENGINE)} for kind in ("net", "mnt", "pid")}
        self.assertEqual({kind: len(found) for kind, found in namespaces.items()}, {"net": 1, "mnt": 2, "pid": 2})

    def test_12_the_image_is_small_and_its_bill_lists_each_file(self):
        size = int(pods.run("podman", "image", "inspect", "-f", "{{.Size}}", self.pod.images[0]).stdout)
        print(f"\n  image: {size / 1e6:.2f} MB on an empty base", flush=True)
        self.assertLess(size, IMAGE_MAX)
        mounted = pods.run("podman", "image", "mount", self.pod.images[0]).stdout.strip()
        try:
            with open(os.path.join(mounted, "usr/share/doc/refit/sbom.spdx.json"), encoding="utf-8") as file:
                listed = {entry["fileName"][1:] for entry in json.load(file)["files"]}
            programs = set()
            for directory, _, files in os.walk(os.path.join(mounted, "opt")):
                programs |= {os.path.join(directory, f)[len(mounted):] for f in files if f != "MANIFEST"}
            self.assertEqual(listed, programs)
        finally:
            pods.run("podman", "image", "umount", self.pod.images[0])

    # --- refits and restarts, under load -----------------------------------------------------------------------------

    def test_20_a_refit_drops_nothing(self):
        load = self.load()
        load.wait_answers(1)
        self.push(2)
        load.wait_answers(2)
        answered, problems = load.stop()
        self.assertEqual(problems, [], f"of {answered}")
        self.assertEqual(sorted(load.versions), [1, 2])
        self.assertTrue(self.pod.probe("refitd", "readinessProbe"))

    def test_30_a_killed_sidecar_drops_nothing_and_takes_its_slots_back(self):
        load = self.load()
        load.wait_answers(2)
        _, before = self.pod.get(7070, "/v1/weights")
        old = self.pod.kill(REFITD)
        whole, own = self.restart_seconds(time.clock_gettime(time.CLOCK_BOOTTIME))
        print(f"\n  sidecar killed to ready: {whole:.2f} s, {own:.2f} s of them from its start", flush=True)
        self.pod.wait_restarted(REFITD, old)
        load.wait_answers(2)
        _, after = self.pod.get(7070, "/v1/weights")
        self.assertEqual(after["active"]["digest"], before["active"]["digest"])
        self.assertEqual(after["active"]["slot"], before["active"]["slot"])
        self.assertIn("slots taken back", self.pod.log(REFITD))
        self.push(3)
        load.wait_answers(3)
        answered, problems = load.stop()
        self.assertEqual(problems, [], f"of {answered}")
        self.assertEqual(sorted(load.versions), [2, 3])

    def restart_seconds(self, killed):
        """(from the kill, from the new process's first instruction) to ready. Starts are counted in ticks of 10 ms."""
        wait_for("readiness", lambda: self.pod.probe("refitd", "readinessProbe"))
        ready = time.clock_gettime(time.CLOCK_BOOTTIME)
        with open(f"/proc/{self.pod.pid(REFITD)}/stat", encoding="utf-8") as file:
            start = int(file.read().rsplit(") ", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
        return ready - killed, ready - start

    def test_31_a_stopped_sidecar_ends_in_time_and_comes_back(self):
        load = self.load()
        load.wait_answers(3)
        old = self.pod.kill(REFITD, signal.SIGTERM)
        self.pod.wait_restarted(REFITD, old)
        self.assertIn("msg=stopped", self.pod.log(REFITD))
        wait_for("readiness", lambda: self.pod.probe("refitd", "readinessProbe"))
        answered, problems = load.stop()
        self.assertEqual(problems, [], f"of {answered}")
        self.assertEqual(self.version(), 3)

    def test_40_a_restarted_engine_finds_its_weights(self):
        old = self.pod.kill(ENGINE)
        self.pod.wait_restarted(ENGINE, old)
        wait_for("readiness", lambda: self.pod.probe("refitd", "readinessProbe"))
        wait_for("the engine", lambda: self.pod.probe("engine", "readinessProbe"))
        load = self.load()
        load.wait_answers(3)
        answered, problems = load.stop()
        self.assertEqual(problems, [], f"of {answered}")

    # --- the end -----------------------------------------------------------------------------------------------------

    def test_90_pre_stop_of_the_manifest_ends_the_pod_in_order(self):
        hook = chart.container(self.pod.spec, "refitd")["lifecycle"]["preStop"]["exec"]["command"]
        waiting = subprocess.Popen(["podman", "exec", REFITD, *hook], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            wait_for("readiness to end", lambda: not self.pod.probe("refitd", "readinessProbe"))
            self.assertTrue(self.pod.probe("refitd", "livenessProbe"))
            # The engine still serves; nothing new begins.
            load = self.load()
            load.wait_answers(3)
            status, problem = self.pod.get(7070, "/v1/lead", "POST", {"name": "late"})
            self.assertEqual((status, problem["type"].rsplit("/", 1)[-1].rsplit(":", 1)[-1]), (503, "draining"))
            self.assertIsNone(waiting.poll(), "preStop ended while the engine was attached")
            answered, problems = load.stop()
            self.assertEqual(problems, [], f"of {answered}")
            pods.run("podman", "stop", "--time", "30", ENGINE)
            output, _ = waiting.communicate(timeout=30)
        finally:
            if waiting.poll() is None:
                waiting.kill()
                waiting.communicate()
        self.assertEqual(waiting.returncode, 0, output)
        grace = self.pod.spec["terminationGracePeriodSeconds"]
        pods.run("podman", "stop", "--time", str(grace), REFITD)
        self.assertEqual(pods.run("podman", "inspect", "-f", "{{.State.ExitCode}}", REFITD).stdout.strip(), "0")


if __name__ == "__main__":
    unittest.main()
