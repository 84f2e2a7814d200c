# SPDX-License-Identifier: Apache-2.0
"""Runs a scenario with Refit's own programs and measures it.

A run is one publish. Its time is that of the transfer alone: from the first replica's entering the phase to the last one's leaving it, by
the replicas' own clocks (phase_us), placed on this process's by asking them meanwhile. Slots are made and touched before, and one
publish that nobody counts comes first.
"""
import signal
import threading
import time
from dataclasses import dataclass, field

import bound
import documents
import measure
import netns
import programs

ASK_S = 0.2  # how often a replica is asked how far it is
ENDED = ("committed", "aborted")
LANDED = ("verify", "prepare", "staged", "committing", "committed")  # the transfer is over, whatever the commit waits for


@dataclass
class Run:
    """One transfer."""
    seconds: float
    idle: float
    links: dict = field(default_factory=dict)  # node: [bytes sent, bytes it was sent]

    @property
    def void(self):
        return self.idle < measure.IDLE_MIN


def bound_of(scenario, goodput):
    """The least time of the scenario; goodput: node to bytes per second."""
    alone = documents.exclusive_bytes(scenario.trainer_layout, scenario.trainer_nodes)
    return bound.refit(scenario.weights, alone, scenario.due(), goodput)


def allowed_by_bytes(scenario, goodput):
    """The least time of gather and broadcast there."""
    held = documents.held_bytes(scenario.trainer_layout, scenario.trainer_nodes)
    first = scenario.trainer_nodes[0]
    return bound.gather_and_broadcast(scenario.weights, held[first], first, list(held), scenario.due(), goodput)


class Links:
    """The links of a box, measured: one of each rate from the trainer's first node, or to it."""

    def __init__(self, box, scenario):
        self.of_rate = {}
        first = scenario.trainer_nodes[0]
        fastest = max(scenario.links, key=lambda node: netns.bits_per_second(scenario.links[node]))
        for node, rate in scenario.links.items():
            if rate not in self.of_rate:
                other = next(n for n in (next(iter(scenario.replicas.values())), first, fastest) if n != node)
                slow = min(rate, scenario.links[other], key=netns.bits_per_second)
                if slow != rate:
                    other = next(n for n in scenario.links if n != node and netns.bits_per_second(scenario.links[n]) >=
                                 netns.bits_per_second(rate))
                self.of_rate[rate] = measure.goodput(box, node, other, netns.bits_per_second(rate))
        self.of_node = {node: self.of_rate[rate] for node, rate in scenario.links.items()}
        self.goodput = {node: link.goodput for node, link in self.of_node.items()}

    def payload(self, node, counted):
        return self.of_node[node].payload(*counted)


def moved(before, after):
    return {node: [a - b for a, b in zip(after[node], before[node])] for node in after}


class Watch(threading.Thread):
    """Asks each replica now and then, to learn when its transfer began."""

    def __init__(self, replicas, version):
        super().__init__(daemon=True)
        self.replicas, self.version = replicas, version
        self.begins = {}
        self.ending = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.join()

    def run(self):
        while not self.ending.wait(ASK_S):
            for replica in list(self.replicas):
                if replica.name not in self.begins and not self.ending.is_set():
                    self._ask(replica)

    def _ask(self, replica):
        before = time.monotonic()
        state = replica.refit(self.version)
        now = time.monotonic()
        if state and state["phase"] == "transfer" and state["phase_us"]["transfer"] > 0:
            self.begins[replica.name] = (before + now) / 2 - state["phase_us"]["transfer"] / 1e6

    def window(self, states):
        """(begin, end) of the transfer over the replicas with these final states. A replica whose transfer was too short to be seen counts
        from the first begin of all."""
        took = {name: state["phase_us"]["transfer"] / 1e6 for name, state in states.items()}
        begins = [self.begins[name] for name in states if name in self.begins]
        if not begins:
            end = time.monotonic()
            return end - max(took.values()), end
        first = min(begins)
        return first, max(self.begins.get(name, first) + took[name] for name in states)


class Stage:
    """A scenario whose programs run: a box, replicas with engines, a trainer; publishes one version after the other."""

    def __init__(self, scenario, build, strategy, requests=None):
        self.scenario, self.build, self.strategy, self.requests = scenario, build, strategy, requests
        self.version = 0
        self.replicas = {}

    def __enter__(self):
        self.box = netns.Box(self.scenario.links)
        self.box.__enter__()
        self.programs = programs.Programs(self.box, self.build)
        try:
            self.links = Links(self.box, self.scenario)
            self.bound = bound_of(self.scenario, self.links.goodput)
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for replica in self.replicas.values():
            replica.close()
        self.programs.__exit__()
        self.box.close()

    def _start(self):
        asked = self.requests or {}
        used = {}
        for name, node in self.scenario.replicas.items():
            number = used[node] = used.get(node, -1) + 1
            serving = [f"hz={asked['hz']}", f"bytes={asked['bytes']}"] if asked and asked["replica"] == name else []
            self.replicas[name] = programs.Replica(
                self.programs, name, node, number, self.scenario.engine_layout, self.scenario.refitd + asked.get("refitd", []), serving,
                asked.get("engine_cpus" if serving else "other_cpus"), asked.get("other_cpus"))
        for replica in self.replicas.values():
            replica.start_engines()
        for replica in self.replicas.values():
            replica.wait_ready()
        self.joiner = self.replicas.get(asked.get("joiner"))
        members = [replica for replica in self.replicas.values() if replica is not self.joiner]
        self.trainer = self.make_trainer("trainer", members)

    def make_trainer(self, name, replicas, port=programs.LEAD):
        copies = len(self.replicas)
        deadline = 30 + 3 * copies * self.bound.seconds
        return programs.Trainer(self.programs, name, self.scenario.trainer_layout, self.scenario.trainer_nodes,
                                [replica.url for replica in replicas], deadline, self.strategy,
                                cpus=(self.requests or {}).get("other_cpus"), port=port)

    def publish(self, disturb=None):
        """One version; a Run over the replicas that are not disturbed."""
        self.version += 1
        counted = [replica for replica in self.replicas.values() if replica is not self.joiner]
        self.trainer.fill(self.version)
        before = self.box.counters()
        with measure.Cpu() as cpu, Watch(counted, self.version) as watch:
            self.trainer.begin(self.version)
            if disturb:
                counted = [replica for replica in counted if replica is not disturb.replica]
                watch.replicas = counted
                disturb.strike(self.version)
                self.wait_until(counted, LANDED)
                disturb.mend()
            line = self.trainer.wait(self.version)
            states = self.wait_until(counted, ENDED)
        for name, state in states.items():
            if state["phase"] != "committed" and not disturb:
                raise programs.Failed(f"{name}: refit to {self.version} is {state['phase']}: {state.get('error')}; trainer: {line}")
        begin, end = watch.window(states)
        return Run(end - begin, cpu.idle(begin, end), moved(before, self.box.counters()))

    def wait_until(self, replicas, phases):
        """Their states in one of these phases."""
        def state(replica):
            found = replica.refit(self.version)
            if found and found["phase"] == "aborted" and "aborted" not in phases:
                raise programs.Failed(f"{replica.name}: refit {self.version} was aborted: {found.get('error')}")
            return found if found and found["phase"] in phases else None
        return {replica.name: programs.poll(f"{replica.name}: refit {self.version} is {' or '.join(phases)}", programs.STEP_S,
                                            lambda: state(replica)) for replica in replicas}

    def check(self):
        for replica in self.replicas.values():
            if replica is not self.joiner:
                replica.check(self.version)

    def egress(self, run):
        """What the trainer's nodes sent, in multiples of the weights."""
        return sum(self.links.payload(node, run.links[node]) for node in set(self.scenario.trainer_nodes)) / self.scenario.weights


class Disturbance:
    """Kills, stops or cuts a replica while it takes a version, and undoes it."""

    def __init__(self, stage, fault):
        self.stage, self.kind, self.after = stage, fault["kind"], fault["after"]
        self.replica = stage.replicas[fault["replica"]]

    def _far_enough(self, version):
        state = self.replica.refit(version)
        if state and state["terminal"]:
            raise programs.Failed(f"{self.replica.name} had ended before it could be disturbed: {state}")
        return state and state["bytes_due"] > 0 and state["bytes_done"] >= self.after * state["bytes_due"]

    def strike(self, version):
        programs.poll(f"{self.replica.name}: {self.after:.0%} of the bytes", programs.STEP_S, lambda: self._far_enough(version))
        if self.kind == "cut":
            self.stage.box.cut(self.replica.node)
        else:
            self.replica.refitd.kill(signal.SIGKILL if self.kind == "kill" else signal.SIGSTOP)

    def mend(self):
        if self.kind == "cut":
            self.stage.box.cut(self.replica.node, mended=True)
        elif self.kind == "stop":
            self.replica.refitd.kill(signal.SIGCONT)
        else:
            self.replica.refitd.wait()
            self.stage.programs.end(self.replica.refitd)
            self.replica.start_refitd()
            self.replica.wait_ready()


def median_of(runs):
    """Of those that count; of all, when none does."""
    valid = [run.seconds for run in runs if not run.void]
    return measure.median(valid or [run.seconds for run in runs])


def result(scenario, method, runs, **more):
    """What is kept of a measurement; `more` is what this kind of it adds."""
    return {"scenario": scenario.name, "method": method, "seconds": median_of(runs), "runs": [round(run.seconds, 4) for run in runs],
            "void": sum(run.void for run in runs), "idle": min(run.idle for run in runs), **more}


def refit(scenario, build, strategy, count, say):
    """Publishes `count` times, and once before; says each run as it ends."""
    with Stage(scenario, build, strategy) as stage:
        describe(stage, say)
        stage.publish()
        runs = []
        for _ in range(count):
            runs.append(stage.publish())
            say_run(runs[-1], stage, say)
        stage.check()
        say(f"every rank of {len(stage.replicas)} replicas has compared every byte of version {stage.version}")
        say_links(runs[-1], stage.links, say)
        seconds = stage.bound.seconds
        return result(scenario, f"refit {strategy}", runs, bound=seconds, ratio=median_of(runs) / seconds, goal=scenario.goal,
                      allowed=allowed_by_bytes(scenario, stage.links.goodput).seconds / seconds,
                      egress=measure.median([stage.egress(run) for run in runs]))


def fault(scenario, build, strategy, count, say):
    """How much one disturbed replica delays the others: as many publishes without and with it, in turns."""
    with Stage(scenario, build, strategy) as stage:
        describe(stage, say)
        stage.publish()
        quiet, disturbed = [], []
        for _ in range(count):
            quiet.append(stage.publish())
            say_run(quiet[-1], stage, say)
            disturbed.append(stage.publish(Disturbance(stage, scenario.fault)))
            say_run(disturbed[-1], stage, say, f"  ({scenario.fault['replica']}: {scenario.fault['kind']}; the other replicas' time)")
        stage.publish()
        stage.check()
        base = median_of(quiet)
        egress, quiet_egress = (measure.median([stage.egress(run) for run in runs]) for runs in (disturbed, quiet))
        return result(scenario, f"refit {strategy}", disturbed, bound=stage.bound.seconds, undisturbed=base,
                      ratio=median_of(disturbed) / base, goal=scenario.fault["goal"], egress=egress, excess=egress - quiet_egress)


def describe(stage, say):
    scenario = stage.scenario
    say(f"box {stage.box.tag}: {len(stage.box.nodes)} nodes")
    for rate, link in stage.links.of_rate.items():
        say(f"link of {rate}: one socket gets {link.goodput / 1e6:.2f} MB/s ({link.share:.3f} of the rate); per byte of payload the "
            f"kernel counts {1 + link.header:.4f} in its direction and {link.answer:.4f} in the other")
        if link.share < 0.95:
            say("  the link does not reach its rate: the machine is too busy, and bounds from it are too high")
    say(f"weights {scenario.weights / 1e6:.1f} MB, {scenario.trainer_ranks} trainer ranks on {len(set(scenario.trainer_nodes))} nodes, "
        f"{len(scenario.replicas)} replicas of {scenario.engine_ranks} ranks on {len(set(scenario.replicas.values()))} nodes")
    for line in stage.bound.lines():
        say("  " + line)


def say_run(run, stage, say, note=""):
    say(f"  {run.seconds:.3f} s  {run.seconds / stage.bound.seconds:.3f} of the bound  idle {run.idle:.0%}  trainer egress "
        f"{stage.egress(run):.3f} x weights{'  VOID: less than 15 % idle' if run.void else ''}{note}")


def say_links(run, links, say):
    say("bytes per link as the kernel counted them in the last run; in brackets the payload, less header and acknowledgements as measured:")
    for node, (sent, received) in run.links.items():
        say(f"  {node:<8} sent {sent:>12} ({links.payload(node, (sent, received)):>12.0f})   "
            f"was sent {received:>12} ({links.payload(node, (received, sent)):>12.0f})")
