# SPDX-License-Identifier: Apache-2.0
"""Replicas that span pods fetch what siblings serve: all of their pods, or none; and are fetched from."""
import signal
import unittest

from harness import Proxy, Replica, engine_layout
from test_joiners import POLL, Catching
from test_policies import SLOW, is_commit

SLOWER = ("--rate", "96KiB")  # the transfer of a pod's 0.3 MB then lasts seconds


class PodJoiners(Catching):
    def write_list(self, name, urls):
        path = self.path(name)
        with open(path, "w") as file:
            file.write("".join(url + "\n" for url in urls))
        return path

    def span(self, name, others=(), *options, slow=None, list_as_one=False, before=None):
        """A replica of two pods with two ranks each, which knows `others` and, by its name or by the list, itself; the
        pod without rank 0 as what before(pods) puts before it."""
        layout, path = engine_layout(4), self.path("siblings-of-" + name)
        self.write_list("siblings-of-" + name, [other.url for other in others] or ["http://127.0.0.1:1"])
        named = () if list_as_one else ("--replica", name)
        pods = [Replica(self, f"{name}{i}", layout, [*named, "--siblings", "file:" + path, *POLL, *options,
                                                     *(SLOWER if i == slow else ())], (), 2 * i, 2, name + ".steps")
                for i in range(2)]
        shown = [pods[0], before(pods) if before else pods[1]]
        own = ["+".join(pod.url for pod in shown)] if list_as_one else [pod.url for pod in shown]
        self.write_list("siblings-of-" + name, [*(other.url for other in others), *own])
        return [pod.start_readers() for pod in pods]

    def publish_to(self, replicas, version):
        urls = ["+".join(pod.url for pod in pods) for pods in replicas]
        lines = self.go(urls, version)
        self.assertTrue(lines[0].startswith(f"ok {version} "), lines)

    def model(self, member):
        return member.weights()["active"]["model"]

    def wait_ready(self, members):
        for member in members:
            self.wait_for(member, lambda member=member: member.admin("/readyz")[0] == 200, "ready")

    def test_a_publish_proves_the_model_that_pods_have_together(self):
        pods, whole = self.span("a"), self.replica("whole", engine_layout(1))
        self.publish_to([pods, [whole]], 1)
        digest = whole.weights()["active"]["digest"]
        self.assertEqual([self.model(member) for member in (whole, *pods)], [digest] * 3)
        self.assertEqual(len({member.weights()["active"]["digest"] for member in (whole, *pods)}), 3)
        self.wait_ready(pods)
        self.assertEqual(pods[1].admin("/readyz")[1]["model"], digest)
        pods[1].refitd.kill()
        pods[1].refitd.wait()
        pods[1].start()
        self.wait_active(pods[1], 1)
        self.assertEqual(self.model(pods[1]), digest)  # it is in the state file

    def test_a_replica_of_pods_fetches_from_a_whole_one(self):
        for list_as_one in (False, True):
            with self.subTest(list_as_one=list_as_one):
                members = self.fleet(1)
                before = members[0].weights()["epoch"]
                pods = self.span(f"a{int(list_as_one)}", members, list_as_one=list_as_one)
                for pod in pods:
                    self.wait_active(pod, 1)
                self.wait_ready(pods)
                self.assertEqual({self.model(member) for member in (*members, *pods)},
                                 {members[0].weights()["active"]["digest"]})
                self.assertEqual(members[0].weights()["epoch"], before)
                self.assertEqual([self.stale(pod) for pod in pods], [None, None])
                for child in self.children:
                    child.end()

    def test_a_whole_one_and_another_of_pods_fetch_from_a_replica_of_pods(self):
        first = self.span("a")
        self.publish_to([first], 1)
        whole, second = self.joiner("whole", first), self.span("b", first)
        # The list of the whole one names pods that say of which replica they are.
        for member in (whole, *second):
            self.wait_active(member, 1)
        self.wait_ready(second)
        self.assertEqual({self.model(member) for member in (whole, *first, *second)}, {self.model(first[0])})
        self.assertEqual([pod.weights()["active"]["digest"] for pod in first],
                         [pod.weights()["active"]["digest"] for pod in second])
        # The next publish is nothing special, for nobody.
        self.publish_to([first, second, [whole]], 2)
        for member in (whole, *first, *second):
            member.wait_step(2)

    def test_no_pod_is_ready_before_all_are(self):
        members = self.fleet(1)
        pods = self.span("a", members, slow=1)
        pods[0].wait_phase("staged", version=1)
        pods[1].wait_phase("transfer", version=1)
        for pod in pods:
            self.assertEqual(pod.admin("/readyz")[0], 503)
            self.assertIsNone(pod.active())
            self.assertIsNotNone(self.stale(pod))
        for pod in pods:
            self.wait_active(pod, 1)
        self.wait_ready(pods)

    def test_a_pod_that_lost_everything_fetches_its_part_and_the_other_goes_on(self):
        members = self.fleet(1)
        for victim in (1, 0):
            with self.subTest(victim=victim):
                pods = self.span(f"a{victim}", members)
                for pod in pods:
                    self.wait_active(pod, 1)
                self.wait_ready(pods)
                swaps = self.metric(pods[1 - victim], "refit_swaps_total")
                for child in (pods[victim].refitd, *pods[victim].readers.values()):
                    child.kill()
                    child.wait()
                pods[victim].start()
                self.wait_for(pods[1 - victim], lambda: pods[1 - victim].admin("/readyz")[0] == 503, "not ready alone")
                pods[victim].start_readers()
                self.wait_active(pods[victim], 1)
                self.wait_ready(pods)
                self.assertEqual(self.metric(pods[1 - victim], "refit_swaps_total"), swaps)
                for pod in pods:
                    for child in (pod.refitd, *pod.readers.values()):
                        child.end()

    def test_pods_that_die_or_stop_while_they_fetch(self):
        members = self.fleet(1, *SLOW)
        for victim, number in ((0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)):
            with self.subTest(victim=victim, signal=number):
                pods = self.span(f"a{victim}{int(number)}", members, *SLOW)
                pods[1].wait_session(lambda state: state["version"] == 1 and state["bytes_done"] > 0)
                pods[victim].refitd.kill(number)
                if number == signal.SIGKILL:
                    pods[victim].refitd.wait()
                    self.assertIsNone(pods[1 - victim].active())
                    pods[victim].start()
                pods[victim].refitd.kill(signal.SIGCONT)
                for pod in pods:
                    self.wait_active(pod, 1)
                self.wait_ready(pods)
                for pod in pods:
                    for child in (pod.refitd, *pod.readers.values()):
                        child.end()

    def test_a_commit_that_breaks_off_between_the_pods_is_finished(self):
        members = self.fleet(1)
        for version, what in ((1, "killed"), (1, "mute"), (2, "killed"), (3, "mute")):
            with self.subTest(version=version, what=what):
                pods, hits = None, []

                def rule(method, path):
                    if not is_commit(method, path) or hits or members[0].active() != version:
                        return None
                    hits.append(path)
                    if what == "mute":
                        return "mute"
                    leader.kill()
                    return None

                def before(all_pods):
                    nonlocal leader
                    leader = all_pods[0].refitd
                    proxy = Proxy(all_pods[1], rule)
                    self.addCleanup(proxy.close)
                    proxies.append(proxy)
                    return proxy
                leader, proxies = None, []
                first = members[0].active()
                pods = self.span(f"a{version}{what}", members, before=before)
                if version > first:
                    for pod in pods:
                        self.wait_active(pod, first)
                    self.publishes(members, version)
                self.assertTrue(proxies[0].hits.wait(60) if what == "mute" else leader.wait() is not None)
                if what == "killed":
                    pods[0].start()
                else:
                    proxies[0].revive()
                for pod in pods:
                    self.wait_active(pod, version)
                self.wait_ready(pods)
                self.assertTrue(hits)
                for pod in pods:
                    for child in (pod.refitd, *pod.readers.values()):
                        child.end()

    def test_a_publish_that_comes_while_pods_fetch_wins(self):
        members = self.fleet(1)
        pods = self.span("a", members, slow=1)
        pods[0].wait_phase("staged", version=1)
        self.publish_to([pods, members], 2)
        for pod in pods:
            pod.wait_step(2)
        self.wait_ready(pods)
        self.assertFalse(any(line.startswith("step 1 ") for line in pods[0].readers[0].lines))

    def test_one_that_missed_versions_switches_at_one_step(self):
        members = self.fleet(1)
        pods = self.span("a", members)
        for pod in pods:
            self.wait_active(pod, 1)
        for version in (2, 3):
            self.publishes(members, version)
            for pod in pods:
                self.wait_active(pod, version)
            self.assertEqual(pods[0].admin("/readyz")[0], 200)
        leader = pods[0].readers[0]
        leader.kill(signal.SIGTERM)
        missed = int(leader.lines[leader.wait_line("steps ")].split(" ")[3])
        self.assertEqual(missed, 0)

    def test_a_model_in_quarantine_is_not_committed_by_a_pod(self):
        members = self.fleet(1)
        pods = self.span("a", members)
        for pod in pods:
            self.wait_active(pod, 1)
        digest = self.model(pods[0])
        lost = [pods[0].refitd, *pods[0].readers.values()]
        for child in lost:
            child.kill()
            child.wait()
        pods[0].start()
        self.assertEqual(pods[0].call("POST", "/v1/quarantine", {"digest": digest, "on": True})[0], 200)
        pods[0].start_readers()
        self.wait_for(pods[0], lambda: "quarantine" in str((self.stale(pods[0]) or {}).get("reason")), "refused")
        self.assertIsNone(pods[0].active())
        self.assertEqual(pods[0].call("POST", "/v1/quarantine", {"digest": digest, "on": False})[0], 200)
        self.wait_active(pods[0], 1)

    def test_pods_without_a_name_say_what_to_do(self):
        members = self.fleet(1)
        path = self.list(members, "unnamed")
        pod = Replica(self, "unnamed", engine_layout(4), ["--siblings", "file:" + path, *POLL], (), 0, 2)
        pod.start_readers()
        self.wait_for(pod, lambda: "--replica" in str((self.stale(pod) or {}).get("reason")), "what to do")
        self.assertIsNone(pod.active())


if __name__ == "__main__":
    unittest.main()
