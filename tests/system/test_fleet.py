# SPDX-License-Identifier: Apache-2.0
"""Members pass bytes on to each other; replicas that span pods switch as one; whoever fails does so alone."""
import signal
import time
import unittest

import test_policies
from harness import Proxy, Replica, engine_layout, source_layout
from test_policies import SLOW, Fleet, is_commit

BYTES = 2 * (1003 * 64 + 64 + 4 * (64 * 64 * 2 + 2 * 16 * 64 + 3 * 176 * 64 + 64))  # of the model


class Relays(Fleet):
    STRATEGY = "relay"

    def sums(self, lines):
        outcome, _, sent, excess, saved, how = next(line for line in lines if line.startswith("fleet")).split(" ")[1:]
        return outcome, int(sent), int(excess), int(saved), how

    def test_the_trainer_sends_each_byte_once(self):
        members = self.fleet(4)
        for version in (2, 3):
            lines = self.go(members, version, "check")
            self.assertTrue(lines[0].startswith(f"ok {version} "), lines)
            outcome, sent, excess, _, how = self.sums(lines)
            self.assertEqual((outcome, how), ("committed", "relayed"))
            # One that has not dialled in time is passed by, and that is counted.
            self.assertEqual(sent - excess, BYTES)
        self.assertEqual(len({member.weights()["active"]["digest"] for member in members}), 1)

    def test_one_that_is_held_is_not_waited_for(self):
        members = self.fleet(3)
        self.assertEqual(members[0].call("POST", "/v1/hold", {})[0], 200)
        lines = self.go(members, 2)
        self.assertEqual(self.outcomes(lines), ["aborted", "committed", "committed"], lines)
        self.assertIn("held", "\n".join(lines))
        for member in members[1:]:  # no batch was the held one's turn
            self.assertEqual(member.call("GET", "/refit")[1]["members"], 2)

    def test_one_refitd_behind_addresses_of_two_families_is_one_member(self):
        members = self.fleet(2)
        six = [f"http://[::ffff:127.0.0.1]:{member.control_port}" for member in members]
        lines = self.go([members[0], *six, members[1]], 2, "policy=all")
        self.assertTrue(lines[0].startswith("ok 2 "), lines)
        self.assertEqual(self.outcomes(lines), ["committed"] * 2, lines)
        self.assertEqual(self.sums(lines)[1] - self.sums(lines)[2], BYTES)
        # One that does not answer may be anybody, and is missed as such; with the next publish it is asked again.
        members[1].refitd.kill(signal.SIGSTOP)
        lines = self.go([members[0], *six, members[1]], 3, "deadline=8000")
        self.assertEqual(self.outcomes(lines), ["committed", "aborted", "aborted"], lines)
        members[1].refitd.kill(signal.SIGCONT)
        self.assertEqual(self.outcomes(self.go([members[0], *six, members[1]], 4, "takeover")), ["committed"] * 2)

    def test_a_replica_of_another_layout_is_served_by_the_others(self):
        members = [self.replica(f"m{i}", engine_layout(1)) for i in range(2)] + [self.replica("tp2", engine_layout(2))]
        lines = self.go(members, 1)
        self.assertTrue(lines[0].startswith("ok 1 "), lines)
        _, sent, excess, _, _ = self.sums(lines)
        self.assertEqual(sent - excess, BYTES)
        self.assertEqual(len({member.weights()["active"]["digest"] for member in members}), 1)
        for member in members:
            member.wait_step(1)

    def test_one_that_is_served_falls_back_to_the_trainer_when_those_that_serve_are_gone(self):
        served = self.replica("tp2", engine_layout(2), *SLOW)
        others = [self.replica(f"m{i}", engine_layout(1), *SLOW) for i in range(2)]
        members = [served, *others]
        self.assertTrue(self.go(members, 1)[0].startswith("ok 1 "))
        ranks = self.go(members, 2, wait=False)
        for other in others:
            other.wait_phase("transfer", version=2)
        served.wait_phase("transfer", version=2)
        for other in others:
            other.refitd.kill()
        lines = self.end_all(ranks)
        self.assertEqual(self.outcomes(lines), ["committed", "aborted", "aborted"], lines)
        served.wait_step(2)

    def test_one_that_dies_or_stops_in_the_transfer_costs_only_itself(self):
        for number in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(signal=number):
                members = self.fleet(3, *SLOW)
                ranks = self.go(members, 2, "deadline=10000", wait=False)
                members[1].wait_phase("transfer", version=2)
                members[1].refitd.kill(number)
                lines = self.end_all(ranks)
                self.assertEqual(self.outcomes(lines)[0::2], ["committed", "committed"], lines)
                self.assertEqual(self.fleet_outcome(lines), "partly-committed")
                for member in (members[0], members[2]):
                    member.wait_step(2)
                members[1].refitd.kill(signal.SIGCONT)
                for child in self.children:
                    child.end()

    def test_one_that_is_stopped_before_the_publish_is_not_waited_for_long(self):
        members = self.fleet(3)
        members[2].refitd.kill(signal.SIGSTOP)
        lines = self.go(members, 2, "deadline=8000")
        self.assertEqual(self.outcomes(lines)[:2], ["committed", "committed"], lines)
        members[2].refitd.kill(signal.SIGCONT)

    def test_a_trainer_that_writes_meanwhile_is_found_out(self):
        source = source_layout(scale=4)
        members = [self.replica(f"m{i}", engine_layout(1, scale=4), "--rate", "8MiB", reader_options=["trust"]) for i in range(3)]
        self.assertTrue(self.publish(source, [1], members)[0].startswith("ok 1 "))
        lines = self.publish(source, [20], members, "check", "scribble")
        self.assertTrue(lines[0].startswith("failed 20 corrupt "), lines)
        self.assertEqual(self.fleet_outcome(lines), "aborted")
        self.serves(members, 1, 1, 1)
        # Unchecked it may succeed; what they serve under this version is the same in any case.
        self.publish(source, [30], members, "scribble")
        served = [member.weights()["active"] for member in members]
        self.assertLessEqual(len({active["digest"] for active in served if active["version"] == 30}), 1)

    def test_what_has_landed_is_not_moved_again(self):
        member = self.replica("m", engine_layout(1), *SLOW)
        self.assertTrue(self.go([member], 1)[0].startswith("ok 1 "))
        ranks = self.go([member], 2, wait=False)
        member.wait_session(lambda state: state["version"] == 2 and state["bytes_done"] > 0)
        for rank in ranks:
            rank.kill()
            rank.wait()
        member.wait_end(2)
        lines = self.go([member], 2, "resume", "takeover", "check")
        self.assertTrue(lines[0].startswith("ok 2 "), lines)
        _, sent, _, saved, _ = self.sums(lines)
        self.assertGreater(saved, 0)
        self.assertEqual(sent + saved, BYTES)
        member.wait_step(2)


class Broadcasts(Fleet):
    STRATEGY = "broadcast"

    def test_members_of_any_layout_get_what_others_get_by_plan(self):
        members = [self.replica(f"tp{tp}", engine_layout(tp)) for tp in (1, 2)]
        digests = []
        for version, strategy in ((1, "broadcast"), (2, "direct"), (3, "relay")):
            lines = self.publish(source_layout(3), [version], members, "strategy=" + strategy, "check")
            self.assertTrue(lines[0].startswith(f"ok {version} "), lines)
            for member in members:
                member.wait_step(version)
            digests.append({member.weights()["active"]["digest"] for member in members})
        self.assertEqual([len(each) for each in digests], [1, 1, 1])

    def test_a_rank_that_dies_ends_it_and_the_next_publish_succeeds(self):
        members = [self.replica(f"m{i}", engine_layout(1), *SLOW) for i in range(2)]
        self.assertTrue(self.go(members, 1)[0].startswith("ok 1 "))
        ranks = self.go(members, 2, wait=False)
        members[0].wait_phase("transfer", version=2)
        ranks[1].kill()
        ranks[1].wait()
        lines = self.end_all(ranks)
        self.assertTrue(lines[0].startswith("failed 2 "), lines)
        self.assertIn("rank 1", lines[0])
        self.assertEqual([member.active() for member in members], [1, 1])
        self.assertTrue(self.go(members, 3)[0].startswith("ok 3 "))
        for member in members:
            member.wait_step(3)

    def test_one_that_is_stopped_in_the_transfer_costs_only_itself(self):
        members = self.fleet(3, *SLOW)
        ranks = self.go(members, 2, "deadline=30000", wait=False)
        members[1].wait_phase("transfer", version=2)
        members[1].refitd.kill(signal.SIGSTOP)
        lines = self.end_all(ranks)
        self.assertEqual(self.outcomes(lines)[0::2], ["committed", "committed"], lines)
        members[1].refitd.kill(signal.SIGCONT)

    def test_the_pods_of_a_replica_are_sent_the_whole_model_too(self):
        pods = [Replica(self, f"p{i}", engine_layout(4), [], (), 2 * i, 2, "p.steps").start_readers() for i in range(2)]
        for version in (1, 2):
            lines = self.go(["+".join(pod.url for pod in pods)], version)
            self.assertTrue(lines[0].startswith(f"ok {version} "), lines)
            for pod in pods:
                pod.wait_step(version)


class Pods(Fleet):
    """A replica of two pods, two ranks each, and for some tests a whole one beside it."""

    def pods(self, name, *options, reader_options=(), slow=None):
        layout = engine_layout(4)
        return [Replica(self, f"{name}{i}", layout, [*options, *(SLOW if i == slow else ())], reader_options, 2 * i, 2,
                        name + ".steps").start_readers() for i in range(2)]

    def joined(self, pods):
        return "+".join(pod.url if isinstance(pod, (Replica, Proxy)) else pod for pod in pods)

    def test_the_pods_of_a_replica_switch_at_the_same_step(self):
        for strategy in ("direct", "relay"):
            with self.subTest(strategy=strategy):
                a, b = self.pods("a-" + strategy), self.pods("b-" + strategy)
                for version in (1, 2, 3):
                    lines = self.publish(source_layout(), [version], [self.joined(a), self.joined(b)], "strategy=" + strategy)
                    self.assertTrue(lines[0].startswith(f"ok {version} "), lines)
                    self.assertEqual(self.outcomes(lines), ["committed"] * 4)
                    for pod in a + b:
                        pod.wait_step(version)
                    self.assertEqual(*[[pod.weights()["active"]["digest"] for pod in pods] for pods in (a, b)])

    def test_a_pod_that_fails_before_the_commit_takes_the_others_with_it(self):
        pods = self.pods("a", slow=1)
        self.assertTrue(self.go([self.joined(pods)], 1)[0].startswith("ok 1 "))
        for victim in (1, 0):
            version = 3 - victim
            ranks = self.go([self.joined(pods)], version, wait=False)
            pods[1].wait_phase("transfer", version=version)
            pods[victim].refitd.kill()
            pods[victim].refitd.wait()
            lines = self.end_all(ranks)
            self.assertEqual(self.outcomes(lines), ["aborted", "aborted"])
            self.assertEqual(pods[1 - victim].active(), 1)
            pods[victim].start()
            self.wait_serving(pods[victim], 1)
        self.assertTrue(self.go([self.joined(pods)], 4)[0].startswith("ok 4 "))
        for pod in pods:
            pod.wait_step(4)

    def wait_serving(self, pod, version):
        for _ in range(3000):
            if pod.admin("/readyz")[0] == 200 and pod.active() == version:
                return
            time.sleep(0.01)
        self.fail(f"{pod.name} serves {pod.weights()}")

    def test_a_leaders_pod_that_fails_at_the_commit_takes_back_the_others(self):
        pods = self.pods("a")
        self.assertTrue(self.go([self.joined(pods)], 1)[0].startswith("ok 1 "))
        seen = []

        def restart(method, path):
            if is_commit(method, path) and pods[0].starts == 1:
                seen.append(pods[1].active())
                pods[0].refitd.kill()
                pods[0].refitd.wait()
                pods[0].start()
        proxy = Proxy(pods[0], restart)
        self.addCleanup(proxy.close)
        lines = self.go([self.joined([proxy, pods[1]])], 2)
        self.assertEqual(seen, [2])  # the other pod had gone first
        self.assertEqual(self.outcomes(lines), ["aborted", "aborted"], lines)
        self.assertEqual(self.fleet_outcome(lines), "aborted")
        self.assertEqual([pod.active() for pod in pods], [1, 1])
        self.assertEqual(pods[1].weights()["held"], False)
        self.wait_serving(pods[0], 1)
        self.assertTrue(self.go([self.joined(pods)], 3)[0].startswith("ok 3 "))
        for pod in pods:
            pod.wait_step(3)

    def test_a_canary_of_two_pods_goes_back_as_one(self):
        a, b = self.pods("a"), self.pods("b")
        members = [self.joined(a), self.joined(b)]
        self.assertTrue(self.go(members, 1)[0].startswith("ok 1 "))
        lines = self.go(members, 2, "policy=canary:1,check=http://127.0.0.1:1/")
        self.assertEqual(self.outcomes(lines), ["aborted"] * 4)
        self.assertEqual([pod.active() for pod in a + b], [1] * 4)

    def test_what_a_dead_lead_left_is_finished_for_all_pods(self):
        pods = self.pods("a", "--staged-ttl", "60s")
        self.assertTrue(self.go([self.joined(pods)], 1)[0].startswith("ok 1 "))
        ranks = self.go([self.joined(pods)], 2, "stage", "stay", wait=False)
        ranks[0].wait_line("fleet staged")
        for rank in ranks:
            rank.kill()
            rank.wait()
        rc, out, err = self.refit("resolve", "--commit", "--to", self.joined(pods))
        self.assertEqual(rc, 0, out + err)
        for pod in pods:
            pod.wait_step(2)
        models = [pod.weights()["active"]["model"] for pod in pods]
        self.assertEqual((len(models[0]), models[0]), (64, models[1]))
        rc, out, err = self.refit("rollback", "--fleet", "--to", self.joined(pods))
        self.assertEqual(rc, 0, out + err)
        self.assertEqual([pod.active() for pod in pods], [1, 1])


class RelayedPolicies(test_policies.Policies):
    STRATEGY = "relay"


if __name__ == "__main__":
    unittest.main()
