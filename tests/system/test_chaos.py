# SPDX-License-Identifier: Apache-2.0
"""Whoever of a fleet is killed, stopped or cut off, at whatever state: every refit ends in a named state, no reader sees a mix, the
members agree, the next publish succeeds, nothing leaks. Real processes in network namespaces (root).

    CHAOS_SECONDS=600 CHAOS_SEED=17 python3 -m unittest test_chaos.Seeds

runs seeds from CHAOS_SEED on ("random": any) for so long, at least one. A seed that fails prints the line that runs it again.
"""
import os
import random
import signal
import sys
import time
import unittest

import poison
from chaos import DEADLINE_S, OUTCOMES, SETTLE_S, Arena, poll
from harness import SLOWDOWN, WAIT_S, source_layout

SECONDS = float(os.environ.get("CHAOS_SECONDS", "30"))
SEED = os.environ.get("CHAOS_SEED", "2")  # its clocks leap


class Seeds(Arena):
    def test_seeds(self):
        first = random.SystemRandom().randrange(1 << 31) if SEED == "random" else int(SEED)
        end, seed, failed = time.monotonic() + SECONDS, first, []
        while seed == first or (time.monotonic() < end and len(failed) < 3):
            if not self.one(seed):
                failed.append(seed)
                sys.stderr.write(f"\nchaos: seed {seed} failed; again: make chaos CHAOS_SEED={seed} CHAOS_SECONDS=1\n")
            seed += 1
        sys.stderr.write(f"chaos: seeds {first} to {seed - 1}, failed: {failed or 'none'}\n")
        self.assertEqual(failed, [])

    def one(self, seed):
        """In a fleet of its own. True when all held."""
        began = time.monotonic()
        with self.subTest(seed=seed):
            try:
                self.run_seed(seed)
            except Exception:
                self.show_logs()
                raise
            finally:
                if os.environ.get("CHAOS_VERBOSE") or sys.exc_info()[0]:
                    sys.stderr.write(f"chaos: seed {seed}, {time.monotonic() - began:.0f} s\n  " + "\n  ".join(self.says) + "\n")
                self.clear()
            return True
        return False


class Rivals(Arena):
    """More than one that wants to lead."""

    NODES = ("n0", "n0", "n1")

    def begin(self, *options):
        return self.start_fleet(self.NODES, ("--staged-ttl", "60s", *options), leaf=False, rates=("1MiB",))

    def rivals(self, members, publishes):
        """Trainers that begin at once, as (version, options); they hold what each said against what its replicas did."""
        trainers = [self.publish_to(members, version, source_layout(), f"deadline={int(DEADLINE_S * 1000)}", f"name=lead-{i}", *options)
                    for i, (version, options) in enumerate(publishes)]
        for trainer in trainers:
            self.assertTrue(trainer.wait(), "a lead said nothing")
        for member in members:
            poll(f"{member.name} is not in a final state", lambda member=member: member.latest()["terminal"])
        digests = {(served["version"], served["digest"]) for served in (member.weights()["active"] for member in members)}
        self.assertEqual(len({version for version, _ in digests}), len(digests), f"one version, two contents: {digests}")
        return trainers

    def was_served(self, member, version):
        return any(line.startswith(f"step {version} ") for line in member.readers[0].lines)

    def check_said(self, members, trainer):
        """What was reported as committed was served, and what was not, never."""
        status, outcome, replicas = trainer.result()
        self.assertIn(outcome, (*OUTCOMES, None), status)
        for member in members:
            said = replicas.get(member.url, "aborted")
            if said == "committed":
                poll(f"{member.name} did not serve {trainer.version}",
                     lambda member=member: self.was_served(member, trainer.version))
            elif said == "aborted":
                self.assertFalse(self.was_served(member, trainer.version), f"{member.name} served {trainer.version}")

    def test_two_leads_at_once(self):
        members = self.begin()
        version = 1
        for words in (("policy=all",), ("policy=each", "takeover"), ("policy=all", "takeover")):
            with self.subTest(words=words):
                for trainer in self.rivals(members, [(version + 1 + i, ("strategy=relay", *words)) for i in range(2)]):
                    self.check_said(members, trainer)
                version = self.publish_whole(members, version + 3, source_layout(), takeover=False)
                self.check_readers(members)

    def test_a_version_that_two_publish_is_served_once(self):
        members = self.begin()
        trainers = self.rivals(members, [(2, ("policy=all", "strategy=relay", "takeover"))] * 2)
        for member in members:
            self.assertLessEqual(sum(line.startswith("step 2 ") for line in member.readers[0].lines), 1)
        self.assertLessEqual(sum(trainer.result()[1] == "committed" for trainer in trainers), 1)
        version = self.publish_whole(members, 3, source_layout(), takeover=False)
        lines = self.publish_to(members, version, source_layout(), "takeover").wait()
        self.assertTrue(lines[0].startswith(f"failed {version} conflict "), lines)
        self.check_readers(members)

    def test_a_lead_that_slept_has_a_stale_epoch(self):
        members = self.begin()
        version = 1
        for phase in ("transfer", "prepare", "staged"):
            with self.subTest(phase=phase):
                asleep = self.publish_to(members, version + 1, source_layout(), "policy=all", "strategy=relay", "name=sleeper", "takeover",
                                         f"deadline={int(SETTLE_S * 1000)}")
                members[0].wait_phase(phase, "committed", version=version + 1)
                for rank in asleep.ranks:
                    rank.kill(signal.SIGSTOP)
                newer = self.publish_whole(members, version + 2, source_layout())
                for rank in asleep.ranks:
                    rank.kill(signal.SIGCONT)
                asleep.wait()
                self.assertEqual([member.active() for member in members], [newer] * 3)
                self.check_said(members, asleep)
                version = newer
        self.check_readers(members)

    def test_a_rollback_during_a_fill(self):
        for slots in (2, 3):
            with self.subTest(slots=slots):
                members = self.begin("--slots", str(slots))
                self.publish_whole(members, 2, source_layout())
                trainer = self.publish_to(members, 3, source_layout(), "policy=all", "strategy=relay", "takeover",
                                          f"deadline={int(DEADLINE_S * 1000)}")
                for member in members:
                    member.wait_phase("transfer", "committed", version=3)
                rolled = [member.call("POST", "/rollback", {"version": 1})[0] == 200 for member in members]
                trainer.wait()
                self.assertIn(trainer.result()[1], OUTCOMES)
                for member, went in zip(members, rolled):
                    poll("not in a final state", lambda member=member: member.latest()["terminal"])
                    self.assertEqual(member.weights()["held"], went)
                    if went:
                        self.assertEqual(member.active(), 1)
                if slots == 3:
                    self.assertEqual(rolled, [True] * 3)  # version 1 was not in the way of the fill
                for member in members:
                    self.assertEqual(member.call("POST", "/v1/release", {})[0], 200)
                self.publish_whole(members, 4, source_layout())
                self.check_readers(members)
                self.clear()


class Joiners(Arena):
    def test_one_joins_while_the_others_commit(self):
        members = self.start_fleet(("n0", "n1", "n2"), ("--staged-ttl", "60s"), leaf=False)
        for version, phase in ((2, "prepare"), (4, "committing")):
            with self.subTest(phase=phase):
                trainer = self.publish_to(members, version, source_layout(), "policy=all", "strategy=relay", "takeover",
                                          f"deadline={int(SETTLE_S * 1000)}")
                members[0].wait_phase(phase, "committed", version=version)
                joiner = self.member("joiner" + phase, "n3", ("--siblings", ",".join(member.url for member in members),
                                                              "--siblings-poll", "200ms"))
                joiner.start_readers()
                lines = trainer.wait()
                self.assertEqual(trainer.result()[1], "committed", lines)
                joiner.wait_step(version)
                self.assertEqual(len({one.weights()["active"]["digest"] for one in (*members, joiner)}), 1)
                self.assertEqual(joiner.admin("/readyz")[0], 200)
                self.publish_whole([*members, joiner], version + 1, source_layout())
                self.check_readers([*members, joiner])


class Poisoned(Arena):
    """Messages that mean harm, to every member and while a version comes in. None dies, all serve."""

    def spread(self, members, poison_one):
        before = [member.refitd.process.pid for member in members]
        for member in members:
            poison_one(member)
        for member, pid in zip(members, before):
            self.assertIsNone(member.refitd.process.poll(), f"{member.name} died")
            self.assertEqual(member.refitd.process.pid, pid)
            self.assertEqual(member.admin("/livez")[0], 200)

    def test_garbage_and_hostile_documents_on_every_route(self):
        members = self.start_fleet(("n0", "n1", "n2"), ("--staged-ttl", "60s"))
        before = self.most_used(members)
        rng = random.Random(int(SEED) if SEED != "random" else None)
        trainer = self.publish_to(members, 2, source_layout(), "policy=all", "strategy=relay", "takeover",
                                  f"deadline={int(SETTLE_S * 1000)}")
        members[0].wait_phase("transfer", version=2)
        self.spread(members, lambda member: self.poison_control(member, rng))
        self.assertEqual(self.wait_outcome(trainer), "committed")
        self.spread(members, lambda member: self.poison_fleet(member, rng, members))
        self.publish_whole(members, 200, source_layout())
        self.check_readers(members)
        self.check_leaks(members, before)

    def wait_outcome(self, trainer):
        trainer.wait()
        return trainer.result()[1]

    def poison_control(self, member, rng):
        for method, path, body in poison.requests(rng):
            status, _ = member.try_call(method, path, body)
            self.assertTrue(status is None or status < 500 or status in (501, 503), f"{method} {path} {body!r:.200}: {status}")
        for request in poison.raw_requests(rng):
            poison.talk(self.box.connect(member.node, member.control_port, 5), request)
            poison.talk(self.box.connect(member.node, member.ports["admin"], 5), request)

    def lead(self, member):
        return member.call("POST", "/v1/lead", {"name": "poison", "takeover": True})[1]["epoch"]

    def request(self, member, version, **more):
        """A request to refit that is right, but for what is more."""
        source = member.call("GET", "/traffic")[1]["source"]
        return {"version": version, "epoch": self.lead(member), "publish_id": f"poison-{version}", "source": source, "transport": "tcp",
                "deadline_ms": 300, **more}

    def poison_fleet(self, member, rng, members):
        cards = [card for one in members for card in one.call("GET", "/v1/host")[1]["transports"].values()]
        began = 0
        for i, fleet in enumerate(poison.fleets(rng, member.url, cards)):
            status, _ = member.call("POST", "/refit", self.request(member, 100 + i, fleet=fleet))
            self.assertIn(status, (202, 400, 422))
            began += status == 202
            poll(f"{member.name}: {member.latest()}", lambda: member.latest()["terminal"])
        self.assertGreater(began, 0)
        self.assertEqual(member.active(), 2)

    def test_garbage_and_forged_greetings_on_every_port(self):
        members = self.start_fleet(("n0", "n1", "n2"), ("--staged-ttl", "60s"))
        before = self.most_used(members)
        rng = random.Random(int(SEED) if SEED != "random" else None)
        trainer = self.publish_to(members, 2, source_layout(), "policy=all", "strategy=relay", "takeover",
                                  f"deadline={int(SETTLE_S * 1000)}")
        members[0].wait_phase("transfer", version=2)
        self.spread(members, lambda member: self.poison_ports(member, rng))
        self.assertEqual(self.wait_outcome(trainer), "committed")
        self.spread(members, lambda member: self.forge(member, rng))
        self.publish_whole(members, 200, source_layout())
        self.check_readers(members)
        self.check_leaks(members, before)

    def data(self, member):
        return self.box.connect(member.node, member.ports["data"], 5)

    def poison_ports(self, member, rng):
        for part in (b"", rng.randbytes(1000), b"GET / HTTP/1.1\r\n\r\n", poison.greeting("x", bytes(16), 0, 0),
                     poison.greeting("x", rng.randbytes(16), 1 << 31, 1 << 20), *poison.frames(rng)):
            poison.talk(self.data(member), part)
        poison.to_packet_socket(member.socket, rng)
        poison.to_packet_socket(member.socket + ".data", rng)

    def forge(self, member, rng):
        """The right token, and then bytes that are not."""
        edges = [int(edge["digest"], 16) for edge in
                 member.call("POST", "/v1/plan", {"source": member.call("GET", "/traffic")[1]["source"]})[1]["edges"]]
        request = self.request(member, 150, deadline_ms=int(5000 * SLOWDOWN))
        status, answer = member.call("POST", "/refit", request)
        self.assertEqual(status, 202, answer)
        welcomed = 0
        for offered in (edges, [], [rng.getrandbits(64) for _ in range(500)], edges * 100):
            for holder, stream, streams in ((0, 0, 1), (1, 1, 2), (7, 0, 1), (0, 5, 1), (0, 0, 1 << 31)):
                greeting = poison.greeting(answer["id"], bytes.fromhex(answer["token"]), holder, len(offered), stream, streams,
                                           digests=offered)
                honest = offered is edges and (holder, stream, streams) == (0, 0, 1)  # that is the first one
                heard = poison.talk(self.data(member), greeting, rng.choice(list(poison.frames(rng))),
                                    patience=WAIT_S if honest else 0.05)
                welcomed += heard.startswith(b"WELM")
                poison.talk(self.data(member), greeting[:rng.randrange(len(greeting))])
        self.assertGreater(welcomed, 0)  # it was let in, and then lied
        state = poll("the forged refit did not end", lambda: self.ended(member))
        self.assertEqual(state["phase"], "aborted")
        self.assertEqual(member.active(), 2)

    @staticmethod
    def ended(member):
        state = member.latest()
        return state if state["terminal"] else None


if __name__ == "__main__":
    unittest.main()
