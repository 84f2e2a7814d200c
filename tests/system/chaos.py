# SPDX-License-Identifier: Apache-2.0
"""Machinery of test_chaos.py: a fleet in network namespaces, faults that strike at a state, and what must hold afterwards.

A seed decides everything about a fleet (its members, their nodes, its policy, the trainer's layout) and its rounds. In a round a version
is published and somebody is killed, stopped or cut off at some state of it. When all is healed the fleet is asked what became of it.
"""
import collections
import functools
import http.client
import itertools
import json
import operator
import os
import random
import re
import signal
import sys
import threading
import time
import unittest

from harness import SLOWDOWN, WAIT_S, Replica, SystemTest, engine_layout, source_layout, tool

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "cluster"))
import netns  # noqa: E402

VICTIMS = ("lead", "source", "seed", "leaf")
ACTIONS = ("kill", "stop", "stop-kill", "cut")
STATES = ("preflight", "waiting", "early", "mid", "late", "verify", "prepare", "staged", "committing")
PHASES = ("requested", "preflight", "waiting-for-readers", "transfer", "verify", "prepare", "staged", "committing", "committed")
# The state a fault waits for: a phase, and in the transfer a part of the bytes.
WANTED = {"preflight": ("requested", 0), "waiting": ("waiting-for-readers", 0), "early": ("transfer", 0), "mid": ("transfer", 0.4),
          "late": ("transfer", 0.85), "verify": ("verify", 0), "prepare": ("prepare", 0), "staged": ("staged", 0),
          "committing": ("committing", 0)}
# Every victim with every action at every state, in an order that has nothing to do with them.
CASES = list(itertools.product(VICTIMS, ACTIONS, STATES))
random.Random(4).shuffle(CASES)

ROUNDS = 3
DEADLINE_S = 8 * SLOWDOWN   # of a publish that is disturbed
SETTLE_S = 60 * SLOWDOWN    # for what has its own deadlines, on a slow machine
OUTCOMES = ("committed", "aborted", "partly-committed", "outcome-unknown")
NODES = ("t0", "t1", "n0", "n1", "n2", "n3")
SANITIZED = SLOWDOWN != 1


def poll(what, look, seconds=SETTLE_S):
    """What `look` returns as soon as it is true; `what` may be a function that says what is wrong."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(0.02)


class Member(Replica):
    """A replica on a node of the box. Its control API is asked from the node itself, so that this goes on when the link is cut."""

    def __init__(self, test, name, node, layout, options, reader_options):
        self.node, self.host = node, test.box.address(node)
        self.hold_file = test.path(name + ".hold")
        super().__init__(test, name, layout, ("--insecure-control", *options), (f"hold-file={self.hold_file}", *reader_options))

    def child(self, name, *command):
        return self.test.on(self.node, name, *command)

    def connection(self, port=None):
        connection = http.client.HTTPConnection(self.host, port or self.control_port, timeout=WAIT_S)
        connection.connect = lambda: setattr(connection, "sock",
                                             self.test.box.connect(self.node, connection.port, connection.timeout))
        return connection

    def try_call(self, method, path, body=None):
        """(None, None) when it does not answer."""
        try:
            return self.call(method, path, body)
        except (OSError, http.client.HTTPException, ValueError):
            return None, None

    def latest(self):
        status, state = self.try_call("GET", "/refit")
        return state if status == 200 else None

    def processes(self):
        return [self.refitd, *self.readers.values()]

    def signal(self, number, whole=False):
        signalled = self.processes() if whole else [self.refitd]
        for child in signalled:
            child.kill(number)
        for child in signalled if number == signal.SIGKILL else ():
            child.process.wait(SETTLE_S)

    def hold(self, on):
        if on:
            with open(self.hold_file, "w"):
                pass
        elif os.path.exists(self.hold_file):
            os.unlink(self.hold_file)

    def usage(self):
        """What refitd has: its threads, and its descriptors by kind."""
        base = f"/proc/{self.refitd.process.pid}"
        found = collections.Counter(threads=len(os.listdir(base + "/task")))
        for name in os.listdir(base + "/fd"):
            try:
                found[re.sub(r"\[?[0-9]+\]?", "", os.readlink(f"{base}/fd/{name}"))] += 1
            except FileNotFoundError:
                pass
        return found

    def restart_what_died(self):
        """As a supervisor does, each by itself."""
        if self.refitd.process.poll() is not None:
            self.refitd.wait()
            self.start()
        dead = [rank for rank, reader in self.readers.items() if reader.process.poll() is not None]
        if dead:
            self.start_readers(*dead, wait=False)


class Trainer:
    """The ranks of one publish, each on a node of its own."""

    def __init__(self, arena, layout, members, version, *options):
        self.arena, self.version = arena, version
        path = arena.write_json(f"source-{len(arena.children)}.json", layout)
        lead = f"{arena.box.address('t0')}:{arena.next_port()}"
        self.ranks = [arena.on(f"t{rank}", f"publisher-{version}-{rank}", tool("tests", "system", "publisher"), path, str(rank),
                               str(layout["ranks"]), lead, str(version), "transport=auto", *options,
                               *([member.url for member in members] if rank == 0 else []))
                      for rank in range(layout["ranks"])]

    def wait(self):
        for rank in self.ranks:
            rank.wait()
        return self.ranks[0].lines

    def result(self):
        """(status, outcome of the fleet, {url: outcome}) as the lead said it; None when it said nothing."""
        lines = self.ranks[0].lines
        if not lines:
            return None
        found = re.match(r"(ok|failed) (\d+) (\S+)", lines[0])
        replicas = dict(line.split(" ")[1:3] for line in lines if line.startswith("replica "))
        fleet = next((line.split(" ")[1] for line in lines if line.startswith("fleet ")), None)
        return (found and found[1]), fleet, replicas


class Fault(threading.Thread):
    """Waits until `watched` is in `state` of its refit to `version`, then does `action` to the victim and undoes it later."""

    def __init__(self, arena, victim, action, state, watched, version, rng):
        super().__init__(daemon=True)
        self.arena, self.victim, self.action, self.state, self.watched, self.version = arena, victim, action, state, watched, version
        self.jitter, self.lasts = rng.choice((0, 0, 0.005, 0.05)), rng.choice((0.3, 1.5, 4)) * SLOWDOWN
        self.whole = rng.random() < 0.25  # a pod: refitd and its engines
        self.hit_at, self.killed_pod, self.over = None, False, threading.Event()

    def __str__(self):
        name = self.victim if isinstance(self.victim, str) else self.victim.name + (" (pod)" if self.whole else "")
        return f"{self.action} {name} when {self.watched.name} is in {self.state} " \
               f"(was in {self.hit_at}), for {self.lasts} s"

    def reached(self, state):
        phase, part = WANTED[self.state]
        if state["terminal"]:
            return True
        at, wanted = PHASES.index(state["phase"]), PHASES.index(phase)
        done = state["bytes_done"] / max(1, state["bytes_due"])
        return at > wanted or (at == wanted and (phase != "transfer" or done >= part))

    def run(self):
        connection = self.watched.connection()
        path = "/refit"
        while not self.over.is_set():
            state = self.ask(connection, path)
            if state and state["version"] == self.version:
                if self.reached(state):
                    self.strike(state)
                    break
                path = f"/refit/{state['id']}?after={state['sequence']}&wait_ms=100"
            elif not state:
                path = "/refit"
                time.sleep(0.05)
        connection.close()

    @staticmethod
    def ask(connection, path):
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            content = answer.read()
            return json.loads(content) if answer.status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            connection.close()
            return None

    def strike(self, state):
        time.sleep(self.jitter)
        self.hit_at = state["phase"]
        if self.action == "cut":
            node = self.node()
            self.arena.box.cut(node)
            self.over.wait(self.lasts)
            self.arena.box.cut(node, mended=True)
            return
        self.signal(signal.SIGKILL if self.action == "kill" else signal.SIGSTOP)
        if self.action != "kill":
            self.over.wait(self.lasts)
            self.signal(signal.SIGKILL if self.action == "stop-kill" else signal.SIGCONT)

    def node(self):
        return {"lead": "t0", "source": "t1"}[self.victim] if isinstance(self.victim, str) else self.victim.node

    def signal(self, number):
        if isinstance(self.victim, str):
            self.arena.trainer.ranks[0 if self.victim == "lead" else 1].kill(number)
        else:
            self.killed_pod = self.whole and number == signal.SIGKILL
            self.victim.signal(number, self.whole)


class Arena(SystemTest):
    """Tests in one box, made once for a class of them."""

    @classmethod
    def setUpClass(cls):
        why = netns.missing()
        if why:
            raise unittest.SkipTest(why)
        cls.box = netns.Box({node: "1gbit" for node in NODES})
        cls.box.__enter__()
        cls.addClassCleanup(cls.box.close)
        cls.ports = itertools.count(7000)

    def setUp(self):
        super().setUp()
        self.leaps = False
        self.trainer = None

    def next_port(self):
        return next(self.ports)

    def on(self, node, name, *command):
        leaping = ("env", "LD_PRELOAD=" + os.path.abspath(tool("tests", "system", "jumping_clock.so"))) if self.leaps else ()
        return self.child(name, *self.box.command(node, [*leaping, *command]))

    def member(self, name, node, options, ranks=1):
        return Member(self, name, node, engine_layout(ranks), ("--lead-ttl", "2s", *options), ("hold=40", "prepare-ms=150"))

    def start_fleet(self, nodes, options=(), leaf=True, rates=("512KiB",)):
        """A member on each of these nodes, all at version 1; with `leaf` the last has another layout and is served by the others."""
        members = [self.member(f"m{i}", node, ("--rate", rates[i % len(rates)], *options), 2 if leaf and i == len(nodes) - 1 else 1)
                   for i, node in enumerate(nodes)]
        for member in members:
            member.start_readers()
        self.publish_whole(members, 1, source_layout())
        return members

    def publish_to(self, members, version, layout, *options):
        self.trainer = Trainer(self, layout, members, version, *options)
        return self.trainer

    def publish_whole(self, members, version, layout, takeover=True):
        """A publish that nothing disturbs must succeed on all; the version that did. Without a takeover a lead that was lost is
        waited for: for as long as the members believe in it."""
        words = ("strategy=relay", f"deadline={int(SETTLE_S * 1000)}", *(("takeover",) if takeover else ()))
        deadline = time.monotonic() + SETTLE_S
        while True:
            lines = self.publish_to(members, version, layout, *words).wait()
            if lines and lines[0].startswith(f"ok {version} "):
                break
            if takeover or not lines or " conflict " not in lines[0] or time.monotonic() > deadline:
                raise AssertionError(f"an undisturbed publish did not succeed: {lines}")
            version += 1
        for member in members:
            member.wait_step(version)
        digests = {member.name: member.weights()["active"] for member in members}
        self.assertEqual({active["version"] for active in digests.values()}, {version}, digests)
        self.assertEqual(len({active["digest"] for active in digests.values()}), 1, digests)
        return version

    # --- what must hold after a round ------------------------------------------------------------------------------

    def settled(self, member, version):
        """The member's refit to the version has ended, or never was."""
        state = member.latest()
        weights = member.try_call("GET", "/v1/weights")[1]
        return weights and "adopting" in weights and not weights["adopting"] and \
            (state is None or state["version"] != version or state["terminal"])

    def check_outcome(self, members, old, new, lost, policy):
        """Each member serves the old or the new version, whole; what the lead said of it is true."""
        for member in members:
            poll(lambda member=member: f"{member.name} is not in a final state: {member.latest()} {member.weights()}",
                 lambda member=member: self.settled(member, new))
        active = {member: member.weights()["active"] for member in members}
        for member, served in active.items():
            self.assertTrue(served or member in lost, f"{member.name} serves nothing")
            self.assertIn(served["version"] if served else None, (old, new, None), member.name)
        for version in (old, new):
            digests = {served["digest"] for served in active.values() if served and served["version"] == version}
            self.assertLessEqual(len(digests), 1, f"version {version} is not the same everywhere")
        result = self.trainer.result()
        if result:
            self.check_report(result, active, new, lost, policy)
        return sum(1 for served in active.values() if served and served["version"] == new)

    def check_report(self, result, active, new, lost, policy):
        status, outcome, replicas = result
        self.assertIn(status, ("ok", "failed"))
        if outcome is None:
            self.assertEqual(status, "failed")
            return
        self.assertIn(outcome, OUTCOMES)
        for member, served in active.items():
            said = replicas[member.url]
            if member in lost or said == "unknown":
                continue
            self.assertEqual(said, "committed" if served and served["version"] == new else "aborted",
                             f"{member.name} serves {served}, the lead said {said}")
        if policy == "all" and outcome == "aborted":
            self.assertNotIn(new, [served["version"] for served in active.values() if served])

    def check_readers(self, members):
        for member in members:
            for rank, reader in member.readers.items():
                self.assertEqual([line for line in reader.lines if line.startswith("torn")], [])
                self.assertIsNone(reader.process.poll(), f"rank {rank} of {member.name} ended: {reader.lines[-3:]}")

    def quiet(self, member):
        """Nothing runs there: no refit, no other replica that is served."""
        state = member.latest()
        serves = member.call("GET", "/v1/serve")[1]["serves"]
        return (not state or state["terminal"]) and not [one for one in serves if one["state"] in ("dialling", "serving")]

    def check_leaks(self, members, before):
        """As many descriptors and threads as in the beginning, and slots that are served, retained or free."""
        for member in members:
            poll(f"{member.name} still serves others", lambda member=member: self.quiet(member))
            poll(lambda member=member: f"{member.name} has more than in the beginning: {member.usage() - before}",
                 lambda member=member: not member.usage() - before)
            states = sorted(slot["state"] for slot in member.weights()["slots"])
            self.assertIn("active", states)
            self.assertTrue(set(states) <= {"active", "retained", "free"}, states)

    def end_fleet(self, members):
        """All end when told, and leave no socket behind."""
        for child in self.children:
            code = child.end()
            if child in [member.refitd for member in members]:
                self.assertEqual(code, 0, f"{child.name} ended with {code}")
        left = [name for name in os.listdir(self.scratch.name) if name.endswith((".sock", ".sock.data"))]
        self.assertEqual(left, [], "sockets were left behind")

    # --- rounds of a seed ------------------------------------------------------------------------------------------

    def run_seed(self, seed):
        rng = random.Random(seed)
        nodes = rng.choice((("n0", "n0", "n1", "n2"), ("n0", "n1", "n2", "n3"), ("n0", "n0", "n1", "n1", "n2")))
        self.leaps = not SANITIZED and rng.random() < 0.25
        self.says = [f"members on {' '.join(nodes)}, the clock {'leaps' if self.leaps else 'is right'}"]
        members = self.start_fleet(nodes, ("--staged-ttl", rng.choice(("3s", "60s"))), leaf=rng.random() < 0.5,
                                   rates=rng.choice((("512KiB",), ("1MiB", "384KiB", "2MiB"))))
        before = self.most_used(members)
        version = 1
        for number in range(ROUNDS):
            version = self.run_round(rng, members, version, CASES[(seed * ROUNDS + number) % len(CASES)])
        self.check_leaks(members, before)
        self.end_fleet(members)

    def clear(self):
        """Ends all, and begins anew in an empty directory."""
        self.tearDown()
        self.setUp()

    def most_used(self, members):
        """By kind, the most that a member has which does nothing. One that was restarted may have what another had."""
        for member in members:
            poll(f"{member.name} still serves others", lambda member=member: self.quiet(member))
        time.sleep(0.5)  # threads that have said their last word
        return functools.reduce(operator.or_, (member.usage() for member in members))

    def run_round(self, rng, members, old, case):
        layout = rng.choice((source_layout(), copied_layout()))
        policy = rng.choice(("each", "all", f"quorum:{len(members) - 1}"))
        strategy = rng.choice(("relay", "relay", "direct"))
        faults = [self.fault(rng, members, old + 2, *case)]
        if rng.random() < 0.33:
            faults.append(self.fault(rng, members, old + 2, *rng.choice(CASES)))
        held = {fault.watched for fault in faults if fault.state == "waiting"}
        for member in held:
            member.hold(True)  # of its two slots the one that the next but one publish needs
            for reader in member.readers.values():
                reader.wait_line(f"holding {old}")
        if held:
            self.publish_held(members, old + 1, layout, held)
            old += 1
        new = old + 1
        for fault in faults:
            fault.version = new
        self.says.append(f"version {new}, {policy}, {strategy}: " + "; ".join(map(str, faults)))
        trainer = self.publish_to(members, new, layout, f"policy={policy}", f"strategy={strategy}", "takeover",
                                  f"deadline={int(DEADLINE_S * 1000)}")
        for fault in faults:
            fault.start()
        lost = self.wait_round(trainer, members, faults, held)
        self.says[-1] = f"version {new}, {policy}, {strategy}: " + "; ".join(map(str, faults))
        reached = self.check_outcome(members, old, new, lost, policy)
        self.says[-1] += f" -> {trainer.result() and trainer.result()[1] or 'no report'}, {reached} of {len(members)} have it"
        version = self.publish_whole(members, new + 1, source_layout(), takeover=rng.random() < 0.5)
        self.check_readers(members)
        return version

    def publish_held(self, members, version, layout, held):
        lines = self.publish_to(members, version, layout, "strategy=relay", "takeover", f"deadline={int(SETTLE_S * 1000)}").wait()
        self.assertTrue(lines and lines[0].startswith(f"ok {version} "), lines)

    def fault(self, rng, members, version, victim, action, state):
        who = {"seed": rng.choice(members[:-1]), "leaf": members[-1]}.get(victim, victim)
        watched = who if isinstance(who, Member) else rng.choice(members)
        return Fault(self, who, action, state, watched, version, rng)

    def wait_round(self, trainer, members, faults, held):
        """Until the trainer has ended and all is healed; who lost all it had. What dies is started again, as by a supervisor."""
        released = time.monotonic() + 1
        deadline = time.monotonic() + DEADLINE_S + SETTLE_S

        def heal():
            if time.monotonic() > released or any(fault.hit_at for fault in faults):
                for member in held:
                    member.hold(False)
            for member in members:
                member.restart_what_died()
            return all(rank.process.poll() is not None for rank in trainer.ranks)

        while not heal():
            if time.monotonic() > deadline:
                raise AssertionError(f"the publish did not end: {[member.latest() for member in members]}")
            time.sleep(0.1)
        trainer.wait()
        for fault in faults:
            fault.over.set()
            fault.join(SETTLE_S)
            self.assertFalse(fault.is_alive(), "a fault did not end")
        for member in members:
            poll(f"{member.name} is not whole", lambda member=member: self.revived(member))
        return {fault.victim for fault in faults if fault.killed_pod}

    @staticmethod
    def revived(member):
        """Everything that was killed has ended by now, or soon."""
        member.restart_what_died()
        weights = member.try_call("GET", "/v1/weights")[1]
        return weights and all(rank["attached"] for rank in weights.get("ranks", [{"attached": False}]))


def copied_layout():
    """A trainer of two ranks that both have everything."""
    layout = source_layout(2)
    for entry in layout["entries"]:
        entry["placements"] = ["Replicate"]
    return layout
