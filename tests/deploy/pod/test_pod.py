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
from pod import chart, wait_for

IMAGE_MAX = 20 << 20


def setUpModule():
    global images
    pods.require_podman()
    images = pods.Images()
    unittest.addModuleCleanup(images.remove)
    images.build()
    images.try_host()
    images.make_checkpoints()


class Case(unittest.TestCase):
    def load(self):
        load = pods.Load(self.pod.pid(self.pod.engine), 8000, images.cold)
        self.addCleanup(load.ending.set)
        return load

    def good(self, load, *versions):
        """Ends the load: nothing was dropped, and these versions answered."""
        answered, problems = load.stop()
        self.assertEqual(problems, [], f"of {answered}")
        self.assertEqual(sorted(load.versions), sorted(versions))


class TwoContainers(Case):
    @classmethod
    def setUpClass(cls):
        cls.pod = pods.Pod(images, "two")
        cls.addClassCleanup(cls.pod.stop)
        cls.started = time.monotonic()
        cls.pod.start()

    # --- the start ---------------------------------------------------------------------------------------------------

    def test_10_probes_of_the_manifest_pass_in_their_order(self):
        self.pod.wait_probe("refitd", "startupProbe")
        self.assertTrue(self.pod.probe("refitd", "livenessProbe"))
        self.pod.wait_probe("engine", "startupProbe")
        self.pod.wait_probe("refitd", "readinessProbe")
        print(f"\n  pod start to ready: {time.monotonic() - self.started:.2f} s", flush=True)
        self.assertTrue(self.pod.probe("engine", "readinessProbe"))
        self.assertEqual(self.pod.version(), 1)

    def test_11_both_run_as_the_manifest_says(self):
        ids = {}
        for container, name in ((self.pod.refitd, "refitd"), (self.pod.engine, "engine")):
            status = self.pod.status(container)
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
        namespaces = {kind: {os.readlink(f"/proc/{self.pod.pid(c)}/ns/{kind}") for c in (self.pod.refitd, self.pod.engine)} for kind in ("net", "mnt", "pid")}
        self.assertEqual({kind: len(found) for kind, found in namespaces.items()}, {"net": 1, "mnt": 2, "pid": 2})

    def test_12_the_image_is_small_and_its_bill_lists_each_file(self):
        size = int(pods.run("podman", "image", "inspect", "-f", "{{.Size}}", images.refit).stdout)
        print(f"\n  image: {size / 1e6:.2f} MB on an empty base", flush=True)
        self.assertLess(size, IMAGE_MAX)
        mounted = pods.run("podman", "image", "mount", images.refit).stdout.strip()
        try:
            with open(os.path.join(mounted, "usr/share/doc/refit/sbom.spdx.json"), encoding="utf-8") as file:
                listed = {entry["fileName"][1:] for entry in json.load(file)["files"]}
            programs = set()
            for directory, _, files in os.walk(os.path.join(mounted, "opt")):
                programs |= {os.path.join(directory, f)[len(mounted):] for f in files if f != "MANIFEST"}
            self.assertEqual(listed, programs)
        finally:
            pods.run("podman", "image", "umount", images.refit)

    # --- refits and restarts, under load -----------------------------------------------------------------------------

    def test_20_a_refit_drops_nothing(self):
        load = self.load()
        load.wait_answers(1)
        self.pod.push(self.pod.refitd, 2)
        load.wait_answers(2)
        self.good(load, 1, 2)
        self.assertTrue(self.pod.probe("refitd", "readinessProbe"))

    def test_30_a_killed_sidecar_drops_nothing_and_takes_its_slots_back(self):
        load = self.load()
        load.wait_answers(2)
        _, before = self.pod.get(7070, "/v1/weights")
        old = self.pod.kill(self.pod.refitd)
        whole, own = self.restart_seconds(time.clock_gettime(time.CLOCK_BOOTTIME))
        print(f"\n  sidecar killed to ready: {whole:.2f} s, {own:.2f} s of them from its start", flush=True)
        self.pod.wait_restarted(self.pod.refitd, old)
        load.wait_answers(2)
        _, after = self.pod.get(7070, "/v1/weights")
        self.assertEqual(after["active"]["digest"], before["active"]["digest"])
        self.assertEqual(after["active"]["slot"], before["active"]["slot"])
        self.assertIn("slots taken back", self.pod.log(self.pod.refitd))
        self.pod.push(self.pod.refitd, 3)
        load.wait_answers(3)
        self.good(load, 2, 3)

    def restart_seconds(self, killed):
        """(from the kill, from the new process's first instruction) to ready. Starts are counted in ticks of 10 ms."""
        self.pod.wait_probe("refitd", "readinessProbe")
        ready = time.clock_gettime(time.CLOCK_BOOTTIME)
        with open(f"/proc/{self.pod.pid(self.pod.refitd)}/stat", encoding="utf-8") as file:
            start = int(file.read().rsplit(") ", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
        return ready - killed, ready - start

    def test_31_a_stopped_sidecar_ends_in_time_and_comes_back(self):
        load = self.load()
        load.wait_answers(3)
        old = self.pod.kill(self.pod.refitd, signal.SIGTERM)
        self.pod.wait_restarted(self.pod.refitd, old)
        self.assertIn("msg=stopped", self.pod.log(self.pod.refitd))
        self.pod.wait_probe("refitd", "readinessProbe")
        self.good(load, 3)
        self.assertEqual(self.pod.version(), 3)

    def test_40_a_restarted_engine_finds_its_weights(self):
        old = self.pod.kill(self.pod.engine)
        self.pod.wait_restarted(self.pod.engine, old)
        self.pod.wait_probe("refitd", "readinessProbe")
        self.pod.wait_probe("engine", "readinessProbe")
        load = self.load()
        load.wait_answers(3)
        self.good(load, 3)

    # --- the end -----------------------------------------------------------------------------------------------------

    def test_90_pre_stop_of_the_manifest_ends_the_pod_in_order(self):
        hook = chart.container(self.pod.spec, "refitd")["lifecycle"]["preStop"]["exec"]["command"]
        waiting = subprocess.Popen(["podman", "exec", self.pod.refitd, *hook], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            wait_for("readiness to end", lambda: not self.pod.probe("refitd", "readinessProbe"))
            self.assertTrue(self.pod.probe("refitd", "livenessProbe"))
            # The engine still serves; nothing new begins.
            load = self.load()
            load.wait_answers(3)
            status, problem = self.pod.get(7070, "/v1/lead", "POST", {"name": "late"})
            self.assertEqual((status, problem["type"].rsplit("/", 1)[-1].rsplit(":", 1)[-1]), (503, "draining"))
            self.assertIsNone(waiting.poll(), "preStop ended while the engine was attached")
            self.good(load, 3)
            pods.run("podman", "stop", "--time", "30", self.pod.engine)
            output, _ = waiting.communicate(timeout=30)
        finally:
            if waiting.poll() is None:
                waiting.kill()
                waiting.communicate()
        self.assertEqual(waiting.returncode, 0, output)
        grace = self.pod.spec["terminationGracePeriodSeconds"]
        pods.run("podman", "stop", "--time", str(grace), self.pod.refitd)
        self.assertEqual(pods.run("podman", "inspect", "-f", "{{.State.ExitCode}}", self.pod.refitd).stdout.strip(), "0")



class OneContainer(Case):
    """gpu.mode exec, on host memory: an init container installs refit in the engine's image, which knows nothing of it."""

    @classmethod
    def setUpClass(cls):
        cls.pod = pods.Pod(images, "one", "--set", "gpu.mode=exec,gpu.staging=512Mi,weights.memory=host", "--set-json",
                           'engine.resources.limits={"nvidia.com/gpu":"1","memory":"2Gi"}')
        cls.addClassCleanup(cls.pod.stop)
        cls.pod.start()

    def processes(self):
        """pid by name, of the container."""
        namespace, found = os.readlink(f"/proc/{self.pod.pid(self.pod.engine)}/ns/pid"), {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                    with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
                        found[file.read().strip()] = int(pid)
            except OSError:
                continue
        return found

    def test_10_both_run_in_the_engine_s_container_and_probes_pass(self):
        self.pod.wait_probe("engine", "startupProbe")
        self.pod.wait_probe("engine", "readinessProbe")
        self.assertEqual(set(self.processes()), {"refit", "refitd", "minilm"})
        self.assertEqual(self.pod.version(), 1)

    def test_20_a_refit_and_a_killed_refitd_drop_nothing(self):
        load = self.load()
        load.wait_answers(1)
        self.pod.push(self.pod.engine, 2)
        load.wait_answers(2)
        before = self.processes()
        os.kill(before["refitd"], 9)
        wait_for("another refitd", lambda: self.processes().get("refitd", before["refitd"]) != before["refitd"])
        self.pod.wait_probe("engine", "readinessProbe")
        self.assertEqual(self.processes()["minilm"], before["minilm"])
        self.pod.push(self.pod.engine, 3)
        load.wait_answers(3)
        self.good(load, 1, 2, 3)

    def test_90_sigterm_ends_the_engine_then_refitd_and_the_status_is_the_engine_s(self):
        pods.run("podman", "stop", "--time", "30", self.pod.engine)
        self.assertEqual(pods.run("podman", "inspect", "-f", "{{.State.ExitCode}}", self.pod.engine).stdout.strip(), "0")
        log = self.pod.log(self.pod.engine)
        self.assertLess(log.index('msg="engine ended"'), log.index("msg=stopped"))


if __name__ == "__main__":
    unittest.main()
