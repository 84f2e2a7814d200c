# SPDX-License-Identifier: Apache-2.0
"""What a refit, and a replica that joins, cost the requests of another replica."""
import contextlib
import os
import time

import measure
import programs
import run


class Window:
    """Requests measured from begin to report."""

    def __init__(self, replica):
        self.replica = replica

    def __enter__(self):
        self.replica.ask("begin", "measuring")
        return self

    def __exit__(self, *_):
        words = self.replica.ask("report", "requests").split()
        self.count, self.p50, self.p99 = int(words[1]), int(words[2]), int(words[3])
        self.acquires, self.acquire_p999 = int(words[6]), int(words[8])


def _while_publishing(stage, seconds):
    """Versions one after the other, so long that the window is full of transfers."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        stage.publish()


def _join(stage, seconds):
    """A replica that the others' refits leave out takes the whole weights, time and again."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        _one_join(stage)


def _one_join(stage):
    joiner = stage.joiner
    version = joiner.version = joiner.version + 1
    trainer = stage.make_trainer(f"trainer-{version}", [joiner], programs.LEAD + version)
    trainer.fill(version)
    trainer.begin(version)
    line = trainer.wait(version)
    trainer.end()
    if not line.startswith("ok"):
        raise programs.Failed(f"{joiner.name} did not catch up: {line}")


@contextlib.contextmanager
def _out_of_the_way(cpus):
    """This process itself on the cores of everything but the engine."""
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def requests(scenario, build, strategy, count, say):
    """Windows of each kind in turns; ratios of the medians of their p99."""
    asked = scenario.requests
    kinds = {"quiet": lambda stage: time.sleep(asked["seconds"]), "refit": lambda stage: _while_publishing(stage, asked["seconds"])}
    if asked["joiner"]:
        kinds["joiner"] = lambda stage: _join(stage, asked["seconds"])
    windows = {kind: [] for kind in kinds}
    with _out_of_the_way(asked["other_cpus"]), run.Stage(scenario, build, strategy, asked) as stage, measure.Cpu() as cpu:
        run.describe(stage, say)
        stage.publish()
        begin = time.monotonic()
        for _ in range(count):
            for kind, work in kinds.items():
                with Window(stage.replicas[asked["replica"]]) as window:
                    work(stage)
                windows[kind].append(window)
                say(f"  {kind:<7} {window.count} requests: p50 {window.p50} us, p99 {window.p99} us; "
                    f"{window.acquires} acquires: p99.9 {window.acquire_p999} ns")
        idle = cpu.idle(begin, time.monotonic())
    return {"scenario": scenario.name, "method": f"refit {strategy}", "goal": asked["goal"], "acquire_goal_ns": asked["acquire_goal_ns"],
            "idle": idle, "void": int(idle < measure.IDLE_MIN) * count,
            "p50_us": {kind: measure.median([w.p50 for w in found]) for kind, found in windows.items()},
            "p99_us": {kind: measure.median([w.p99 for w in found]) for kind, found in windows.items()},
            "acquire_p999_ns": {kind: measure.median([w.acquire_p999 for w in found]) for kind, found in windows.items()},
            "ratios": {kind: measure.median([w.p99 for w in found]) / measure.median([w.p99 for w in windows["quiet"]])
                       for kind, found in windows.items() if kind != "quiet"}}
