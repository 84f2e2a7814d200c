# SPDX-License-Identifier: Apache-2.0
"""Replicas that span pods, for long and under fire: whatever happens to a pod, no step has two versions in it."""
import os
import random
import signal
import struct
import time
import unittest

from harness import WAIT_S, engine_layout
from test_fleet import Pods
from test_policies import Fleet

SEED = int(os.environ.get("REFIT_TEST_SEED", "1"))
ROUNDS = int(os.environ.get("REFIT_TEST_ROUNDS", "3"))
STEPS = 2000


class Spanning(Fleet):
    pods, joined = Pods.pods, Pods.joined

    def steps(self, pods):
        with open(pods[0].steps, "rb") as file:
            return struct.unpack("<Q", file.read(8))[0]

    def end_readers(self, pods):
        """How many steps there were, and in how many of them a follower could not follow."""
        leader = pods[0].readers[0]
        leader.kill(signal.SIGTERM)
        line = leader.lines[leader.wait_line("steps ")].split(" ")
        return int(line[1]), int(line[3])

    def wait_for(self, holds, what):
        deadline = time.monotonic() + WAIT_S
        while not holds():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.01)

    def publishes(self, pods, version, *options):
        lines = self.go([self.joined(pods)], version, *options)
        self.assertTrue(lines[0].startswith(f"ok {version} "), lines)

    def test_no_step_mixes_versions_while_refits_and_rollbacks_go_on(self):
        pods = self.pods("a")
        self.publishes(pods, 1)
        version, first = 1, self.steps(pods)
        while version < 7 or self.steps(pods) < first + STEPS:
            version += 1
            self.publishes(pods, version)
            if version % 2 == 0:
                before = self.steps(pods)
                rc, out, err = self.refit("rollback", "--fleet", "--to", self.joined(pods))
                self.assertEqual(rc, 0, out + err)
                self.assertEqual([pod.active() for pod in pods], [version - 1] * 2)
                self.wait_for(lambda: self.steps(pods) > before, "steps go on")
                rc, out, err = self.refit("release", "--to", self.joined(pods))
                self.assertEqual(rc, 0, out + err)
        steps, missed = self.end_readers(pods)
        self.assertGreaterEqual(steps, STEPS)
        self.assertEqual(missed, 0)

    def strike(self, pods, dice, version):
        """A publish during which a pod is killed or stopped in some phase; the pods agree afterwards."""
        victim, number = dice.randrange(2), dice.choice([signal.SIGKILL, signal.SIGSTOP])
        phase = dice.choice(["waiting-for-readers", "transfer", "verify", "staged", "committing", "committed"])
        what = f"seed {SEED}, version {version}: {number.name} to pod {victim} in {phase}"
        ranks = self.go([self.joined(pods)], version, "deadline=8000", wait=False)
        order = ["requested", "preflight", "waiting-for-readers", "transfer", "verify", "prepare", "staged", "committing",
                 "committed", "aborted"]
        pods[victim].wait_session(lambda state: state["version"] == version and
                                  order.index(state["phase"]) >= order.index(phase))
        pods[victim].refitd.kill(number)
        lines = self.end_all(ranks)
        pods[victim].refitd.kill(signal.SIGCONT)
        if number == signal.SIGKILL:
            pods[victim].refitd.wait()
            pods[victim].start()
        return what, lines

    def settle(self, pods, version, what, lines):
        """Both serve the new version, or both the one before; where the sender could not know, it said so."""
        def agree():
            served = [pod.active() for pod in pods]
            return served[0] == served[1] and served[0] in (version, version - 1)
        if self.fleet_outcome(lines) in ("outcome-unknown", "partly-committed"):
            self.refit("resolve", "--commit", "--to", self.joined(pods))
            return
        self.wait_for(agree, f"{what}: {lines}, they serve {[pod.active() for pod in pods]}")

    def test_a_pod_that_is_killed_or_stopped_in_any_phase(self):
        dice = random.Random(SEED)
        pods = self.pods("a", "--staged-ttl", "60s", slow=1)
        self.publishes(pods, 1)
        version = 1
        for _ in range(ROUNDS):
            version += 1
            with self.subTest(version=version):
                what, lines = self.strike(pods, dice, version)
                self.settle(pods, version, what, lines)
                for pod in pods:
                    self.wait_for(lambda pod=pod: pod.admin("/readyz")[0] == 200, f"{what}: {pod.name} is ready")
                version += 1
                self.publishes(pods, version, "takeover")
                for pod in pods:
                    pod.wait_step(version)
        self.end_readers(pods)


del Pods  # its own tests run with the fleets


if __name__ == "__main__":
    unittest.main()
