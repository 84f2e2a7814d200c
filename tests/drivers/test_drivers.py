# SPDX-License-Identifier: Apache-2.0
"""refitd with engines that install weights themselves: whole refits, and every step of them made to fail."""
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))

from engines import Fault, OldSglang, Sglang, Vllm, digest, read_safetensors  # noqa: E402
from harness import Replica, SLOWDOWN, SystemTest, WAIT_S, engine_layout, source_layout, tool  # noqa: E402
from test_checkpoint import write_checkpoint  # noqa: E402


class Driven(SystemTest):
    engine_class = Vllm
    load = "rpc"
    ranks = 2

    def layout_option(self):
        return self.path("a.layout.json")

    def setUp(self):
        super().setUp()
        self.root = self.path("root")
        os.mkdir(self.root)
        self.versions = {}
        write_checkpoint(os.path.join(self.root, "base"), 1000)
        self.engine = self.engine_class(read_safetensors(os.path.join(self.root, "base")))
        self.addCleanup(self.engine.close)
        self.dir = self.path("weights")
        self.replica = None
        self.start()

    def tearDown(self):
        super().tearDown()
        self.assertEqual(self.engine.violations, [])
        self.assertEqual(self.engine.requests, 3, "a request was dropped")

    def start(self):
        os.mkdir(self.path("state"))
        self.replica = Replica(self, "a", engine_layout(self.ranks), [
            "--layout", self.layout_option(), "--state-file", self.path("state/state.json"),
            "--checkpoint-root", self.root, "--engine",
            f"{self.engine.kind}={self.engine.url}", "--engine-dir", self.dir, "--engine-load", self.load,
            "--engine-timeout",
            "30s", "--engine-load-timeout", "30s", "--engine-poll", "30ms"])

    def be_impatient(self):
        """Hangs are seen soon; other tests must not take a slow machine for one."""
        at = self.replica.options.index("--engine-timeout") + 1
        self.replica.options[at] = f"{int(1500 * SLOWDOWN)}ms"
        self.restart()

    def restart(self):
        self.replica.refitd.kill()
        self.replica.refitd.wait()
        self.replica.start()

    def checkpoint(self, version):
        name = f"v{version}"
        if version not in self.versions:
            write_checkpoint(os.path.join(self.root, name), version)
            self.versions[version] = read_safetensors(os.path.join(self.root, name))
            self.engine.learn(name, self.versions[version])
        return name

    def refit(self, version, kv="flush", deadline_ms=None):
        body = {"version": version, "checkpoint": self.checkpoint(version), "kv": kv}
        if deadline_ms:
            body["deadline_ms"] = int(deadline_ms * SLOWDOWN)
        status, answer = self.replica.call("POST", "/refit", body)
        self.assertEqual(status, 202, answer)
        state = self.replica.wait_session(lambda s: s["terminal"], answer["id"])
        return "committed" if state["phase"] == "committed" else state["error"]["text"]

    def ready(self):
        status, body = self.replica.admin("/readyz")
        return status == 200, body

    def wait(self, wanted, what):
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if wanted():
                return
            time.sleep(0.005)
        self.fail(f"{what}: {self.ready()}, {self.replica.call('GET', '/status')[1].get('engine')}")

    def wait_ready(self, version):
        self.wait(lambda: self.ready()[0] and self.ready()[1]["version"] == version, f"ready with version {version}")
        self.assertEqual(self.engine.serves(), f"v{version}")

    def wait_not_ready(self, word):
        self.wait(lambda: not self.ready()[0] and word in " ".join(self.ready()[1]["reasons"]), f"not ready: {word}")

    def assert_serves(self, version):
        self.assertEqual(self.engine.serves(), f"v{version}")
        self.assertEqual(self.engine.version, str(version))
        self.assertTrue(self.ready()[0], self.ready())
        self.assertEqual(self.replica.active(), version)
        self.wait(lambda: not os.listdir(self.dir), "no copy is left behind")


class Steps:
    """The steps of an install, each made to fail in each way."""

    def test_versions_are_installed_and_rolled_back(self):
        self.wait(lambda: not self.ready()[0], "not ready without a version")
        for version in (1, 2, 3):
            self.assertEqual(self.refit(version), "committed")
            self.assert_serves(version)
        self.assertEqual(self.replica.call("POST", "/rollback", {})[0], 200)
        self.assert_serves(2)
        self.assertEqual(self.replica.call("GET", "/status")[1]["engine"]["installs"], 4)

    def test_a_failing_step_leaves_the_old_version_and_the_next_refit_works(self):
        self.assertEqual(self.refit(1), "committed")
        version = 1
        for step in self.steps:
            for fault in (Fault("status", 400 if step == "load" else 500), Fault("drop"), Fault("late")):
                with self.subTest(step=step, kind=fault.kind, status=fault.status):
                    kind = fault.kind
                    self.engine.faults[step] = fault
                    text = self.refit(version + 1)
                    self.assertIn("goes on with version" if kind != "late" or step != "resume" else "", text)
                    self.assertNotEqual(text, "committed")
                    self.wait_ready(version)
                    self.assert_serves(version)
                    version += 1
                    self.assertEqual(self.refit(version), "committed")
                    self.assert_serves(version)

    def test_a_load_that_fails_midway_is_taken_back(self):
        self.assertEqual(self.refit(1), "committed")
        self.engine.faults["load"] = Fault("half")
        self.assertIn("goes on with version 1", self.refit(2))
        self.assert_serves(1)
        self.assertEqual(self.replica.call("GET", "/status")[1]["engine"]["restores"], 1)
        self.assertEqual(self.refit(2), "committed")
        self.assert_serves(2)

    def test_a_hang_ends_at_the_deadline(self):
        self.be_impatient()
        self.assertEqual(self.refit(1), "committed")
        version = 1
        for step in self.steps:
            with self.subTest(step=step):
                self.engine.faults[step] = Fault("hang")
                text = self.refit(version + 1, deadline_ms=5000)
                self.assertNotEqual(text, "committed")
                self.wait_ready(version)
                version += 1
                self.assertEqual(self.refit(version), "committed")
                self.assert_serves(version)
        self.engine.let_go.set()

    def test_an_engine_that_crashes_in_between_gets_the_old_version_when_it_is_back(self):
        self.assertEqual(self.refit(1), "committed")
        for version, step in enumerate(self.steps, 2):
            with self.subTest(step=step):
                self.engine.faults[step] = Fault("crash")
                self.assertNotEqual(self.refit(version), "committed")
                self.wait_not_ready("engine")
                self.engine.restart()
                self.wait_ready(1)
                self.assert_serves(1)
        self.assertEqual(self.refit(99), "committed")
        self.assert_serves(99)

    def test_a_refitd_that_was_killed_in_between_does_not_resume(self):
        self.assertEqual(self.refit(1), "committed")
        self.engine.faults["load"] = Fault("half")
        hold = self.engine.load_file
        killed = []

        def load_file(path, half):
            if not killed:
                killed.append(True)
                self.replica.refitd.kill(signal.SIGKILL)
            hold(path, half)

        self.engine.load_file = load_file
        self.replica.call("POST", "/refit", {"version": 2, "checkpoint": self.checkpoint(2), "kv": "flush"})
        self.replica.refitd.wait()
        self.assertTrue(os.listdir(self.dir))
        self.replica.start()
        self.wait_not_ready("was cut off")
        self.assertEqual(os.listdir(self.dir), [])
        self.assertIsNone(self.engine.serves())
        self.assertEqual(self.refit(3), "committed")
        self.assert_serves(3)


class Installs(Steps):
    """What else holds for every kind."""

    def test_caches_are_kept_when_that_is_asked_for(self):
        self.assertEqual(self.refit(1), "committed")
        flushes = len([c for c in self.engine.calls if "cache" in c[0]])
        self.assertEqual(self.refit(2, kv="keep"), "committed")
        self.assert_serves(2)
        self.assertEqual(len([c for c in self.engine.calls if "cache" in c[0]]), flushes)
        self.assertTrue(self.engine.kept)

    def test_kv_that_the_engine_can_not_do_is_refused_untouched(self):
        self.assertEqual(self.refit(1), "committed")
        self.assertIn("can flush or keep", self.refit(2, kv="namespace"))
        self.assert_serves(1)

    def test_it_stays_paused_when_going_back_fails_too_and_is_put_right_later(self):
        self.assertEqual(self.refit(1), "committed")
        self.engine.faults["load"] = Fault("half", times=10**6)
        self.assertIn("stays paused", self.refit(2))
        self.wait_not_ready("stays paused")
        self.assertIsNone(self.engine.serves())
        self.engine.faults.clear()
        self.wait_ready(1)
        self.assertEqual(self.refit(2), "committed")
        self.assert_serves(2)

    def test_what_is_said_when_only_resuming_fails(self):
        self.assertEqual(self.refit(1), "committed")
        for version, step, said in ((2, None, "is loaded again, but the engine did not say that it was resumed"),
                                    (3, "pause", "nothing was written, and the engine is not resumed")):
            with self.subTest(said=said):
                self.engine.faults["resume"] = Fault("status", 500, times=10**6)
                if step:
                    self.engine.faults[step] = Fault("status", 500, times=10**6)
                self.assertIn(said, self.refit(version))
                self.wait_not_ready(said)
                self.engine.faults.clear()
                self.wait_ready(1)
                self.assert_serves(1)

    def test_a_refit_puts_a_paused_engine_right(self):
        self.assertEqual(self.refit(1), "committed")
        self.engine.faults["load"] = Fault("half", times=2)
        self.refit(2)
        self.assertEqual(self.refit(3), "committed")
        self.assert_serves(3)

    def test_without_a_version_before_it_stays_paused(self):
        self.engine.faults["load"] = Fault("half")
        self.assertIn("stays paused", self.refit(1))
        self.wait_not_ready("no slot holds the version before")
        self.assertIsNone(self.engine.serves())
        self.assertEqual(self.refit(2), "committed")
        self.assert_serves(2)

    def test_a_pause_that_comes_late_is_undone(self):
        self.be_impatient()
        self.assertEqual(self.refit(1), "committed")
        late = self.engine.faults["pause"] = Fault("after")
        self.assertIn("no answer", self.refit(2))
        looks = len(self.engine.calls)
        self.wait(lambda: len(self.engine.calls) >= looks + 4, "looked at")
        late.gate.set()
        self.wait(lambda: late.done.is_set(), "paused late")
        self.wait(lambda: self.engine.serves() == "v1", "generates again")
        self.assertEqual(self.refit(3), "committed")
        self.assert_serves(3)

    def test_a_restarted_engine_gets_the_active_version(self):
        self.assertEqual(self.refit(1), "committed")
        self.assertEqual(self.refit(2), "committed")
        self.engine.crash()
        self.wait_not_ready("engine")
        self.engine.restart()
        self.wait_ready(2)
        self.assert_serves(2)
        self.engine.restart()  # between two looks
        self.wait(lambda: self.engine.version == "2", "installed again")
        self.wait_ready(2)

    def test_a_wrong_version_afterwards_is_a_failed_install(self):
        self.assertEqual(self.refit(1), "committed")
        self.engine.faults["finish" if "finish" in self.steps else "load"] = Fault("other-version")
        text = self.refit(2)
        self.assertIn('says it has weights "other" after "2" was loaded', text)
        self.assertIn("goes on with version 1", text)
        self.assert_serves(1)

    def test_a_restarted_refitd_finds_what_it_left(self):
        self.assertEqual(self.refit(1), "committed")
        loads = len(self.engine.calls)
        self.restart()
        self.wait(lambda: self.ready()[0], "ready at once")
        self.assertEqual(self.ready()[1]["version"], 1)
        self.assertNotEqual(self.ready()[1]["digest"], "")
        self.assertEqual([c for c in self.engine.calls[loads:] if c[0] not in self.looks], [])
        self.assertEqual(self.refit(2), "committed")
        self.assert_serves(2)

    def test_an_engine_that_is_not_there_fails_prepare(self):
        self.assertEqual(self.refit(1), "committed")
        self.engine.crash()
        self.assertIn("prepare", self.refit(2))
        self.engine.restart()
        self.wait_ready(1)


class VllmByRpc(Installs, Driven):
    steps = ("pause", "load", "finish", "flush", "flush-mm", "flush-encoder", "resume")
    looks = ("/weight_info", "/is_paused")

    def test_one_that_somebody_else_paused_is_left_alone(self):
        self.assertEqual(self.refit(1), "committed")
        self.engine.paused = True
        self.assertIn("not by this refitd", self.refit(2))
        self.engine.paused = False
        self.assertEqual(self.refit(3), "committed")


class VllmByTransfer(Steps, Driven):
    load = "transfer"
    looks = ("/weight_info", "/is_paused")
    steps = ("pause", "begin", "load", "finish", "flush", "resume")


class SglangDriven(Installs, Driven):
    engine_class = Sglang
    steps = ("pause", "load", "flush", "resume")
    looks = ("/model_info",)


class Others(Driven):
    """What does not depend on the kind."""
    looks = ("/weight_info", "/is_paused")

    def test_an_engine_that_does_not_answer_for_a_while_is_not_changed(self):
        self.be_impatient()
        self.assertEqual(self.refit(1), "committed")
        calls = len(self.engine.calls)
        for restart in (False, True):
            if restart:
                self.restart()
                self.wait_ready(1)
            self.engine.faults["look"] = Fault("hang", times=4)
            self.wait_not_ready("no answer")
            self.wait_ready(1)
        self.assertEqual([c for c in self.engine.calls[calls:] if c[0] not in self.looks], [])
        self.engine.let_go.set()

    def test_trainers_publish_to_it(self):
        for version in (1, 2):
            self.checkpoint(version)
            self.publish(source_layout(2), [version], [self.replica])
            self.assert_serves(version)

    def test_without_a_state_file_nothing_is_begun(self):
        self.assertEqual(self.refit(1), "committed")
        shutil.rmtree(self.path("state"))
        self.assertIn("the engine was not touched", self.refit(2))
        self.assert_serves(1)
        os.mkdir(self.path("state"))
        self.assertEqual(self.refit(3), "committed")
        self.assert_serves(3)

    def test_answers_that_are_none_change_nothing(self):
        self.assertEqual(self.refit(1), "committed")
        for fault in (Fault("huge"), Fault("status", 200), Fault("status", 404), Fault("drop")):
            with self.subTest(kind=fault.kind, status=fault.status):
                self.engine.faults["look"] = fault
                fault.times = 10**6
                self.assertIn("prepare", self.refit(2))
                self.wait_not_ready("engine")
                self.engine.faults.clear()
                self.wait_ready(1)
        self.assertEqual(self.refit(2), "committed")

    def test_a_model_that_is_another_one_is_taken_back(self):
        self.assertEqual(self.refit(1), "committed")
        base = self.engine.base
        self.engine.base = {name: base[name] for name in sorted(base)[1:]}
        self.assertIn("the checkpoint's tensors are not the model's", self.refit(2))
        self.wait_not_ready("stays paused")
        self.engine.base = base
        self.wait_ready(1)

    def test_what_does_not_belong_together_is_refused(self):
        for options in (("--engine", "vllm=http://127.0.0.1:1"), ("--engine", "trtllm=http://127.0.0.1:1", "--layout", "x"),
                        ("--engine", "vllm=https://127.0.0.1:1", "--layout", "x")):
            done = subprocess.run([tool("sidecar", "refitd"), *options, "--print-config"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("--engine", done.stderr)


class OldSglangDriven(Driven):
    """The older name of a route, and the layout of a checkpoint's directory."""
    engine_class = OldSglang
    ranks = 1

    def layout_option(self):
        return os.path.join(self.root, "base")

    def test_versions_are_installed(self):
        for version in (1, 2):
            self.assertEqual(self.refit(version), "committed")
            self.assert_serves(version)


if __name__ == "__main__":
    unittest.main()
