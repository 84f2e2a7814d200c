# SPDX-License-Identifier: Apache-2.0
"""Members that come late, or missed a version, fetch it from their siblings: with no trainer, and nobody else disturbed."""
import os
import signal
import time
import unittest

from harness import WAIT_S, engine_layout, source_layout
from test_policies import SLOW, SLOWER, Fleet

POLL = ("--siblings-poll", "200ms")


class Catching(Fleet):
    """What tests of catching up need."""

    def list(self, members, name="siblings"):
        """The siblings as a file that can be replaced."""
        path = self.path(name)
        with open(path + ".new", "w") as file:
            file.write("# siblings\n" + "".join(member.url + "\n" for member in members))
        os.rename(path + ".new", path)
        return path

    def joiner(self, name, members, *options, layout=None, **more):
        siblings = "file:" + self.list(members, "siblings-of-" + name)
        return self.replica(name, layout or engine_layout(1), "--siblings", siblings, *POLL, *options, **more)

    def wait_active(self, member, version):
        self.wait_for(member, lambda: member.active() == version, f"serves {version}")
        member.wait_step(version)

    def wait_for(self, member, holds, what):
        deadline = time.monotonic() + WAIT_S
        while not holds():
            self.assertLess(time.monotonic(), deadline, f"{member.name}: not seen: {what}: {member.weights()}")
            time.sleep(0.01)

    def publishes(self, members, version):
        lines = self.go(members, version)
        self.assertTrue(lines[0].startswith(f"ok {version} "), lines)

    def stale(self, member):
        return member.weights()["stale"]

    def metric(self, member, name):
        return float(next(line.split(" ")[-1] for line in member.admin("/metrics")[1].splitlines() if line.startswith(name + " ")))

    def same(self, members):
        self.assertEqual(len({member.weights()["active"]["digest"] for member in members}), 1)


class Joiners(Catching):
    def test_a_joiner_is_ready_when_it_has_what_its_siblings_serve(self):
        members = self.fleet(2)
        before = [member.weights()["epoch"] for member in members]
        joiner = self.joiner("joiner", members)
        self.wait_active(joiner, 1)
        self.wait_for(joiner, lambda: joiner.admin("/readyz")[0] == 200, "ready")
        self.same([*members, joiner])
        self.assertEqual(joiner.weights()["active"]["label"], members[0].weights()["active"]["label"])
        self.wait_for(joiner, lambda: self.stale(joiner) is None, "not stale")
        self.wait_for(joiner, lambda: self.metric(joiner, 'refit_catch_ups_total{result="caught-up"}') == 1, "counted")
        self.assertEqual([member.weights()["epoch"] for member in members], before)
        # The next publish is nothing special, for nobody.
        self.publishes([*members, joiner], 2)
        for member in [*members, joiner]:
            member.wait_step(2)

    def test_one_that_missed_a_version_fetches_it_and_stays_ready(self):
        members = self.fleet(2)
        late = self.joiner("late", members)
        self.wait_active(late, 1)
        self.publishes(members, 2)
        self.publishes(members, 3)
        self.wait_active(late, 3)
        self.same([*members, late])
        self.wait_for(late, lambda: self.metric(late, "refit_version_lag") == 0, "no lag")

    def test_of_another_layout(self):
        members = self.fleet(2)
        joiner = self.joiner("tp2", members, layout=engine_layout(2))
        self.wait_active(joiner, 1)
        self.same([*members, joiner])

    def test_a_fleet_that_has_nothing_waits_and_says_so(self):
        first = self.replica("first", engine_layout(1))
        joiner = self.joiner("joiner", [first])
        self.wait_for(joiner, lambda: self.stale(joiner)["heard"] == 1, "heard of the other")
        status, body = joiner.admin("/readyz")
        self.assertEqual(status, 503)
        self.assertIn("none of 1 siblings that answered serves a newer version", str(body["reasons"]))
        self.publishes([first], 1)
        self.wait_active(joiner, 1)

    def test_itself_among_the_siblings_is_left_out(self):
        members = self.fleet(1)
        path = self.list(members, "all")
        joiner = self.replica("joiner", engine_layout(1), "--siblings", "file:" + path, *POLL)
        self.list([*members, joiner], "all")
        self.wait_active(joiner, 1)
        self.wait_for(joiner, lambda: self.metric(joiner, "refit_siblings") == 1, "one sibling")
        joiner.refitd.kill()
        joiner.refitd.wait()
        joiner.start()
        self.wait_active(joiner, 1)

    def test_a_publish_that_comes_meanwhile_wins(self):
        members = self.fleet(2)
        joiner = self.joiner("joiner", members, *SLOWER)
        joiner.wait_phase("transfer", version=1)
        ranks = self.go([*members, joiner], 2, wait=False)
        lines = self.end_all(ranks)
        self.assertTrue(lines[0].startswith("ok 2 "), lines)
        self.wait_active(joiner, 2)
        self.wait_for(joiner, lambda: self.metric(joiner, 'refit_catch_ups_total{result="superseded"}') == 1, "superseded")
        self.same([*members, joiner])

    def test_siblings_that_die_or_stop_are_passed_by(self):
        for number in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(signal=number):
                members = self.fleet(3, *SLOW)
                joiner = self.joiner(f"joiner{int(number)}", members, *SLOW)
                joiner.wait_session(lambda state: state["version"] == 1 and state["bytes_done"] > 0)
                serving = [member for member in members if member.call("GET", "/v1/serve")[1]["serves"]]
                self.assertTrue(serving)
                for member in serving:
                    member.refitd.kill(number)
                self.wait_active(joiner, 1)
                for child in self.children:
                    child.end()

    def test_one_that_stops_while_it_fetches_costs_its_siblings_no_publish(self):
        members = self.fleet(2)
        joiner = self.joiner("joiner", members, *SLOW)
        joiner.wait_session(lambda state: state["version"] == 1 and state["bytes_done"] > 0)
        joiner.refitd.kill(signal.SIGSTOP)
        self.publishes(members, 2)
        self.publishes(members, 3)
        joiner.refitd.kill(signal.SIGCONT)
        self.wait_active(joiner, 3)

    def test_held_nothing_is_fetched_and_what_was_gone_back_from_never(self):
        members = self.fleet(2)
        late = self.joiner("late", members)
        self.wait_active(late, 1)
        self.publishes([*members, late], 2)
        self.assertEqual(late.call("POST", "/rollback", {})[0], 200)
        self.assertEqual(late.active(), 1)
        self.wait_for(late, lambda: (self.stale(late) or {}).get("behind") == 1, "behind")
        self.assertEqual(late.call("POST", "/v1/release", {})[0], 200)
        self.assertEqual(late.admin("/readyz")[0], 200)
        self.publishes(members, 3)
        self.wait_active(late, 3)
        self.assertFalse(any(line.startswith("step 2") for line in late.readers[0].lines[3:]), late.readers[0].lines)

    def test_a_version_that_siblings_went_back_from_is_not_fetched(self):
        members = self.fleet(2)
        self.publishes(members, 2)
        self.assertEqual(members[0].call("POST", "/rollback", {})[0], 200)
        joiner = self.joiner("joiner", members)
        self.wait_active(joiner, 1)
        self.assertEqual(members[1].active(), 2)

    def test_ten_joiners_spread_over_the_siblings(self):
        members = self.fleet(3)
        joiners = [self.joiner(f"joiner{i}", members) for i in range(10)]
        for joiner in joiners:
            self.wait_active(joiner, 1)
        serves = []
        for member in members:
            with open(self.path(f"refitd-{member.name}.log")) as log:
                serves.append(sum("change=serve " in line for line in log))
        self.assertTrue(all(serves), serves)
        self.same([*members, *joiners])

    def test_a_joiner_during_a_commit(self):
        members = self.fleet(2, "--staged-ttl", "60s")
        ranks = self.go(members, 2, "stage", "stay", wait=False)
        ranks[0].wait_line("fleet staged")
        joiner = self.joiner("joiner", members)
        self.wait_active(joiner, 1)
        for rank in ranks:
            rank.kill()
            rank.wait()
        rc, out, err = self.refit("resolve", "--commit", *(member.url for member in members))
        self.assertEqual(rc, 0, out + err)
        self.wait_active(joiner, 2)
        self.same([*members, joiner])

    def test_members_that_change_between_publishes_and_during_one_count_from_the_next_on(self):
        members, gate = self.fleet(3, *SLOW), self.path("gate")
        path = self.list(members[:2])
        ranks = self.publish(source_layout(), [2, 3, 4], ["file:" + path], "strategy=relay", "gate=" + gate, wait=False)
        for version, now in ((2, members), (3, members[1:]), (4, members[1:])):
            with open(f"{gate}.{version}", "w"):
                pass
            members[1].wait_phase("transfer", version=version)
            self.list(now)
            members[1].wait_end(version)
        lines = self.end_all(ranks)
        self.assertEqual([line.split(" ")[2] for line in lines if line.startswith("fleet")], ["1", "2", "3"], lines)
        self.serves(members, 3, 4, 4)

    def test_a_leaver_in_the_middle_of_a_refit_costs_only_itself(self):
        members = self.fleet(3, *SLOW)
        ranks = self.go(members, 2, "deadline=20000", wait=False)
        members[2].wait_phase("transfer", version=2)
        members[2].refitd.kill(signal.SIGTERM)
        self.assertEqual(members[2].refitd.wait(), 0)
        lines = self.end_all(ranks)
        self.assertEqual(self.outcomes(lines)[:2], ["committed", "committed"], lines)
        members[2].options += ["--siblings", "file:" + self.list(members[:2]), *POLL]
        members[2].start()
        self.wait_active(members[2], 2)
        self.same(members)


if __name__ == "__main__":
    unittest.main()
