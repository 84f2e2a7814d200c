# SPDX-License-Identifier: Apache-2.0
"""A fleet commits as its policy says, whoever fails when; what a dead lead left is found out and finished."""
import http.server
import json
import os
import subprocess
import threading
import unittest

from harness import SLOWDOWN, Proxy, SystemTest, engine_layout, source_layout, tool

SLOW = ("--rate", "512KiB")  # the transfer of 0.5 MB then lasts about a second
SLOWER = ("--rate", "128KiB")  # about four, in which a trainer's processes start on a busy machine, too


def is_commit(method, path):
    return method == "POST" and path.endswith("/commit")


class Check:
    """What a canary's check asks: answers `status`, and notes what `look` sees at that time."""

    def __init__(self, status, look=lambda: None):
        self.seen = []
        check = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                check.seen.append((self.path, look()))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}/verdict"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Fleet(SystemTest):
    STRATEGY = "direct"

    def fleet(self, count, *options, slow=()):
        """Replicas of one layout, all of them at version 1."""
        members = [self.replica(f"m{i}", engine_layout(1), "--staged-ttl", "60s", *options, *(SLOWER if i in slow else ()))
                   for i in range(count)]
        lines = self.go(members, 1)
        self.assertTrue(lines and lines[0].startswith("ok 1 "), lines)
        return members

    def go(self, members, version, *options, wait=True):
        versions = version if isinstance(version, list) else [version]
        return self.publish(source_layout(), versions, members, f"strategy={self.STRATEGY}", *options, wait=wait)

    def outcomes(self, lines):
        return [line.split(" ")[2] for line in lines if line.startswith("replica")]

    def fleet_outcome(self, lines):
        return next(line.split(" ")[1] for line in lines if line.startswith("fleet"))

    def serves(self, members, *versions):
        self.assertEqual([member.active() for member in members], list(versions))

    def refit(self, *words):
        done = subprocess.run([tool("cli", "refit"), *words], capture_output=True, text=True, timeout=120 * SLOWDOWN, check=False)
        return done.returncode, done.stdout, done.stderr

    def end_all(self, ranks):
        for rank in ranks:
            rank.wait()
        return ranks[0].lines


class Policies(Fleet):
    def test_all_commits_on_all(self):
        members = self.fleet(3)
        lines = self.go(members, 2, "policy=all")
        self.assertTrue(lines[0].startswith("ok 2 "), lines)
        self.assertEqual(self.fleet_outcome(lines), "committed")
        self.serves(members, 2, 2, 2)

    def test_all_aborts_all_when_one_refuses(self):
        members = self.fleet(3)
        self.assertEqual(members[1].call("POST", "/v1/hold", {})[0], 200)
        lines = self.go(members, 2, "policy=all")
        self.assertEqual(self.outcomes(lines), ["aborted"] * 3)
        self.assertEqual(self.fleet_outcome(lines), "aborted")
        self.assertIn("held", lines[1])
        self.assertIn("none commits unless all do", lines[1])
        self.serves(members, 1, 1, 1)

    def test_all_aborts_all_when_one_dies(self):
        for phase, waits_for in (("transfer", 2), ("staged", 0)):
            with self.subTest(phase=phase):
                members = self.fleet(3, slow=[2])
                ranks = self.go(members, 2, "policy=all", wait=False)
                members[2].wait_phase("transfer", version=2)
                members[waits_for].wait_phase(phase, version=2)
                members[waits_for].refitd.kill()
                lines = self.end_all(ranks)
                self.assertEqual(self.outcomes(lines), ["aborted"] * 3)
                self.assertEqual(self.fleet_outcome(lines), "aborted")
                alive = [member for i, member in enumerate(members) if i != waits_for]
                self.serves(alive, 1, 1)
                self.assertTrue(self.go(alive, 3, "policy=all")[0].startswith("ok 3 "))
                for child in self.children:
                    child.end()

    def test_a_quorum_is_enough(self):
        members = self.fleet(3)
        members[0].refitd.kill()
        members[0].refitd.wait()
        lines = self.go(members, 2, "policy=quorum:2")
        self.assertTrue(lines[0].startswith("ok 2 "), lines)
        self.assertEqual(self.outcomes(lines), ["aborted", "committed", "committed"])
        self.assertEqual(self.fleet_outcome(lines), "partly-committed")
        lines = self.go(members, 3, "policy=quorum:3")
        self.assertEqual(self.outcomes(lines), ["aborted"] * 3)
        self.assertIn("quorum can't be reached", "".join(lines))
        self.serves(members[1:], 2, 2)

    def test_each_is_partly_committed_when_one_is_dead(self):
        members = self.fleet(2)
        members[1].refitd.kill()
        members[1].refitd.wait()
        lines = self.go(members, 2)
        self.assertTrue(lines[0].startswith("failed 2 "), lines)
        self.assertEqual(self.fleet_outcome(lines), "partly-committed")

    def test_a_policy_that_speaks_of_more_replicas_than_there_are_is_refused(self):
        members = self.fleet(1)
        lines = self.go(members, 2, "policy=quorum:2")
        self.assertTrue(lines[0].startswith("failed 2 invalid "), lines)
        self.serves(members, 1)


class Canaries(Fleet):
    def test_the_rest_follows_a_canary_that_is_good(self):
        members = self.fleet(3)
        check = Check(204, lambda: [member.active() for member in members])
        self.addCleanup(check.close)
        lines = self.go(members, 2, f"policy=canary:1,wait=300ms,check={check.url}")
        self.assertTrue(lines[0].startswith("ok 2 "), lines)
        self.assertEqual(check.seen, [("/verdict", [2, 1, 1])])
        self.serves(members, 2, 2, 2)

    def test_a_canary_that_is_not_good_goes_back_and_the_rest_never_went(self):
        members = self.fleet(3)
        check = Check(500)
        self.addCleanup(check.close)
        lines = self.go(members, 2, f"policy=canary:2,check={check.url}")
        self.assertEqual(self.outcomes(lines), ["aborted"] * 3)
        self.assertIn("HTTP status 500", lines[0])
        self.assertIn("taken back", lines[1])
        self.assertEqual(self.fleet_outcome(lines), "aborted")
        self.serves(members, 1, 1, 1)
        self.assertEqual([member.weights()["held"] for member in members], [False] * 3)
        self.assertTrue(self.go(members, 3)[0].startswith("ok 3 "))

    def test_a_check_that_nobody_answers_is_not_good(self):
        members = self.fleet(2)
        lines = self.go(members, 2, "policy=canary:1,check=http://127.0.0.1:1/")
        self.assertEqual(self.outcomes(lines), ["aborted"] * 2)
        self.serves(members, 1, 1)

    def test_a_canary_that_dies_before_its_commit_stops_the_rest(self):
        members = self.fleet(3, slow=[0])
        ranks = self.go(members, 2, "policy=canary:1", wait=False)
        members[1].wait_phase("staged", version=2)
        members[0].wait_phase("transfer", version=2)
        members[0].refitd.kill()
        lines = self.end_all(ranks)
        self.assertEqual(self.outcomes(lines), ["aborted"] * 3)
        self.assertIn("a canary failed", "".join(lines))
        self.serves(members[1:], 1, 1)

    def test_a_wait_that_the_deadline_does_not_cover_is_refused(self):
        members = self.fleet(2)
        lines = self.go(members, 2, "policy=canary:1,wait=10m")
        self.assertTrue(lines[0].startswith("failed 2 invalid "), lines)


class Unknown(Fleet):
    def behind_proxy(self, count, what):
        members = self.fleet(count)
        proxy = Proxy(members[1], lambda method, path: what if is_commit(method, path) else None)
        self.addCleanup(proxy.close)
        return members, proxy

    def test_a_commit_whose_outcome_is_not_known_is_said_and_resolved(self):
        members, proxy = self.behind_proxy(2, "drop")
        lines = self.go([members[0], proxy], 2, "policy=all")
        self.assertEqual(self.outcomes(lines), ["committed", "unknown"])
        self.assertEqual(self.fleet_outcome(lines), "outcome-unknown")
        self.serves(members, 2, 1)
        rc, out, err = self.refit("resolve", "--to", members[0].url, "--to", members[1].url, "--output", "json")
        self.assertEqual((rc, json.loads(out)["outcome"]), (0, "committed"), err)
        self.serves(members, 2, 2)

    def test_a_commit_that_was_done_but_not_heard_of(self):
        members, proxy = self.behind_proxy(2, "mute")
        lines = self.go([members[0], proxy], 2, "policy=all")
        self.assertEqual(self.outcomes(lines), ["committed", "unknown"])
        members[1].wait_end(2)
        self.serves(members, 2, 2)
        rc, out, _ = self.refit("resolve", members[0].url, members[1].url)
        self.assertEqual(rc, 0, out)

    def test_a_commit_that_was_done_and_not_heard_of_is_found_done_whatever_is_said_to_its_repeat(self):
        members, commits = self.fleet(2), []

        def rule(method, path):
            if not is_commit(method, path):
                return None
            commits.append(path)
            return "lose" if len(commits) == 1 else 403
        proxy = Proxy(members[1], rule)
        self.addCleanup(proxy.close)
        lines = self.go([members[0], proxy], 2, "policy=all")
        self.assertEqual(self.outcomes(lines), ["committed", "committed"], lines)
        self.serves(members, 2, 2)
        self.assertGreater(len(commits), 1)

    def test_a_member_that_is_restarted_at_the_commit_leaves_it_partly_committed(self):
        members = self.fleet(2)

        def restart(method, path):
            if is_commit(method, path) and members[1].starts == 1:
                members[1].refitd.kill()
                members[1].refitd.wait()
                members[1].start()
            return None
        proxy = Proxy(members[1], restart)
        self.addCleanup(proxy.close)
        lines = self.go([members[0], proxy], 2, "policy=all")
        self.assertEqual(self.outcomes(lines), ["committed", "aborted"])
        self.assertEqual(self.fleet_outcome(lines), "partly-committed")
        self.assertEqual(members[0].active(), 2)


class DeadLeads(Fleet):
    def staged_and_dead(self, *options):
        members = self.fleet(2)
        ranks = self.go(members, 2, "stage", "stay", *options, wait=False)
        ranks[0].wait_line("fleet staged")
        for rank in ranks:
            rank.kill()
            rank.wait()
        for member in members:
            member.wait_phase("staged", version=2)
        return members, [word for member in members for word in ("--to", member.url)]

    def test_what_nobody_committed_is_aborted(self):
        members, to = self.staged_and_dead()
        rc, out, err = self.refit("resolve", *to, "--output", "json")
        self.assertEqual((rc, json.loads(out)["outcome"]), (0, "aborted"), err)
        self.serves(members, 1, 1)
        self.assertTrue(self.go(members, 3, "takeover")[0].startswith("ok 3 "))

    def test_what_nobody_committed_is_committed_when_asked_for(self):
        members, to = self.staged_and_dead()
        rc, out, err = self.refit("resolve", "--commit", *to)
        self.assertEqual(rc, 0, out + err)
        self.serves(members, 2, 2)
        rc, out, err = self.refit("resolve", *to)  # once more changes nothing
        self.assertEqual(rc, 0, out + err)
        self.serves(members, 2, 2)

    def test_what_one_committed_the_others_commit(self):
        members = self.fleet(3)
        ranks = self.go(members, 2, "policy=canary:1,wait=15s", wait=False)
        members[0].wait_end(2)
        for member in members[1:]:
            member.wait_phase("staged", version=2)
        for rank in ranks:
            rank.kill()
            rank.wait()
        self.serves(members, 2, 1, 1)
        rc, out, err = self.refit("resolve", *[member.url for member in members])
        self.assertEqual(rc, 0, out + err)
        self.serves(members, 2, 2, 2)

    def test_what_one_committed_can_be_taken_back(self):
        members = self.fleet(2)
        ranks = self.go(members, 2, "policy=canary:1,wait=15s", wait=False)
        members[0].wait_end(2)
        members[1].wait_phase("staged", version=2)
        for rank in ranks:
            rank.kill()
            rank.wait()
        rc, out, err = self.refit("resolve", "--abort", *[member.url for member in members])
        self.assertEqual(rc, 0, out + err)
        self.serves(members, 1, 1)

    def test_a_member_that_does_not_answer_stays_unknown(self):
        members, to = self.staged_and_dead()
        members[1].refitd.kill()
        members[1].refitd.wait()
        rc, out, _ = self.refit("resolve", "--commit", *to, "--output", "json")
        self.assertEqual(json.loads(out)["outcome"], "outcome-unknown")
        self.assertEqual(rc, 3)
        self.assertEqual(members[0].active(), 2)

    def test_staged_members_that_nobody_asks_time_out_by_themselves(self):
        members = self.fleet(2, "--staged-ttl", "2s")
        ranks = self.go(members, 2, "stage", "stay", wait=False)
        ranks[0].wait_line("fleet staged")
        for rank in ranks:
            rank.kill()
            rank.wait()
        self.assertEqual([member.wait_end(2)["phase"] for member in members], ["aborted"] * 2)
        self.serves(members, 1, 1)


class Leads(Fleet):
    def test_of_two_leads_the_second_is_refused_by_name_unless_it_takes_over(self):
        members = self.fleet(2, *SLOWER)
        first = self.go(members, 2, "name=first", wait=False)
        members[1].wait_phase("transfer", version=2)
        lines = self.go(members, 3, "name=second")
        self.assertTrue(lines[0].startswith("failed 3 conflict "), lines)
        self.assertIn("first", lines[0])
        lines = self.go(members, 4, "name=third", "takeover")
        self.assertTrue(lines[0].startswith("ok 4 "), lines)
        self.assertTrue(self.end_all(first)[0].startswith("failed 2 "))
        self.serves(members, 4, 4)

    def test_a_version_is_published_once(self):
        members = self.fleet(2)
        for policy in ("each", "all"):
            lines = self.go(members, 1, f"policy={policy}")
            self.assertTrue(lines[0].startswith("failed 1 conflict "), lines)
            self.assertEqual(self.fleet_outcome(lines), "aborted")
        self.serves(members, 1, 1)


class Members(Fleet):
    def write_members(self, members):
        path = self.path("members")
        with open(path + ".new", "w") as file:
            file.write("# who is here\n" + "".join(member.url + "\n" for member in members))
        os.rename(path + ".new", path)
        return "file:" + path

    def open_gate(self, version):
        with open(self.path(f"gate.{version}"), "w"):
            pass

    def wait_fleet(self, ranks, count):
        found = -1
        for _ in range(count):
            found = ranks[0].wait_line("fleet", after=found + 1)
        return ranks[0].lines[found]

    def test_members_come_and_go_between_publishes(self):
        a, b, c = (self.replica(f"m{i}", engine_layout(1)) for i in range(3))
        ranks = self.go([self.write_members([a, b])], [1, 2, 3, 4], "gate=" + self.path("gate"), wait=False)
        self.open_gate(1)
        self.assertTrue(self.wait_fleet(ranks, 1).startswith("fleet committed 1 "))
        self.open_gate(2)
        self.assertTrue(self.wait_fleet(ranks, 2).startswith("fleet committed 1 "))
        self.write_members([b, c])
        self.open_gate(3)
        self.assertTrue(self.wait_fleet(ranks, 3).startswith("fleet committed 2 "))
        self.serves([a, b, c], 2, 3, 3)
        self.write_members([a, b, c])
        self.open_gate(4)
        self.assertTrue(self.end_all(ranks)[-1].startswith("fleet committed 3 "))
        self.serves([a, b, c], 4, 4, 4)

    def test_a_member_that_left_is_free_for_another_lead(self):
        a, b = (self.replica(f"m{i}", engine_layout(1), "--lead-ttl", "10m") for i in range(2))
        ranks = self.go([self.write_members([a, b])], [1, 2], "gate=" + self.path("gate"), "name=one", "stay", wait=False)
        self.open_gate(1)
        self.wait_fleet(ranks, 1)
        self.write_members([b])
        self.open_gate(2)
        self.wait_fleet(ranks, 2)
        lines = self.go([a], 7, "name=two")
        self.assertTrue(lines[0].startswith("ok 7 "), lines)
        self.serves([a, b], 7, 2)


class Commands(Fleet):
    def all_of(self, members):
        path = self.path("members")
        with open(path, "w") as file:
            file.write("".join(member.url + "\n" for member in members))
        return "--to", "file:" + path

    def test_a_fleet_is_rolled_back_to_one_version_or_not_at_all(self):
        members = self.fleet(3)
        self.assertTrue(self.go(members, 2)[0].startswith("ok 2 "))
        self.assertTrue(self.go(members[:1], 3, "takeover")[0].startswith("ok 3 "))
        to = self.all_of(members)
        rc, out, err = self.refit("rollback", "--fleet", *to)
        self.assertEqual(rc, 0, out + err)
        self.serves(members, 2, 2, 2)
        self.assertEqual([member.weights()["held"] for member in members], [True] * 3)
        self.assertIn("held", self.go(members, 4, "takeover")[0])
        self.assertEqual(self.refit("release", *to)[0], 0)
        self.assertTrue(self.go(members, 4, "takeover")[0].startswith("ok 4 "))
        rc, out, err = self.refit("rollback", "--fleet", "--version", "1", *to)
        self.assertEqual(rc, 1, out)
        self.assertIn("nothing was changed", err)
        members[2].refitd.kill()
        members[2].refitd.wait()
        rc, out, err = self.refit("rollback", "--fleet", *to)
        self.assertEqual(rc, 1, out)
        self.assertIn("did not answer", err)
        self.serves(members[:2], 4, 4)
        self.assertEqual(self.refit("rollback", *to)[0], 3)  # those that can

    def test_a_quarantined_digest_is_refused_everywhere(self):
        members = self.fleet(2)
        digest = members[0].weights()["active"]["digest"]
        self.assertTrue(self.go(members, 2)[0].startswith("ok 2 "))
        to = self.all_of(members)
        self.assertEqual(self.refit("rollback", "--fleet", "--quarantine", *to)[0], 0)
        self.assertEqual(self.refit("release", *to)[0], 0)
        self.assertEqual([member.weights()["active"]["digest"] for member in members], [digest] * 2)
        lines = self.go(members, 2)
        self.assertEqual(self.outcomes(lines), ["aborted"] * 2)
        self.serves(members, 1, 1)

    def test_a_fleet_at_a_glance(self):
        members = self.fleet(3)
        self.assertTrue(self.go(members[:2], 2)[0].startswith("ok 2 "))
        members[1].refitd.kill()
        members[1].refitd.wait()
        rc, out, _ = self.refit("fleet", "--output", "json", *self.all_of(members))
        first, silent, stale = json.loads(out)
        self.assertEqual(rc, 3)
        self.assertEqual((first["version"], first["stale"], first["state"]), (2, False, "serving"))
        self.assertEqual(silent["state"], "silent")
        self.assertEqual((stale["version"], stale["stale"]), (1, True))
        rc, out, _ = self.refit("fleet", *self.all_of(members))
        self.assertIn("STALE", out)

    def test_hold_and_release(self):
        members = self.fleet(2)
        to = self.all_of(members)
        self.assertEqual(self.refit("hold", *to)[0], 0)
        self.assertEqual(self.outcomes(self.go(members, 2)), ["aborted"] * 2)
        self.assertEqual(self.refit("release", *to)[0], 0)
        self.assertTrue(self.go(members, 2)[0].startswith("ok 2 "))


if __name__ == "__main__":
    unittest.main()
