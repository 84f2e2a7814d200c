# SPDX-License-Identifier: Apache-2.0
"""The same scenario through torch.distributed over gloo: one process for each rank of the trainer and for each replica (gloo_worker.py)."""
import os
import subprocess
import sys

import measure
import netns
import programs
import run

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH = "torch==2.13.0"
PORT = 29500


def _environment(build):
    return os.path.join(os.path.dirname(os.path.abspath(build)), "gloo-venv")


def _python(build):
    python = os.path.join(_environment(build), "bin", "python")
    if not os.path.exists(python):
        raise programs.Failed(f"no torch in {_environment(build)}: run with --install-peer first, or make cluster")
    return python


def install(build):
    """CPU torch, into a virtual environment of its own beside the build tree; nothing when it is there."""
    path = _environment(build)
    python = os.path.join(path, "bin", "python")
    if os.path.exists(python) and subprocess.run([python, "-c", "import torch, numpy"], capture_output=True).returncode == 0:
        return
    print(f"installing {TORCH} into {path}", flush=True)
    for command in ([sys.executable, "-m", "venv", path], [python, "-m", "pip", "install", "-q", TORCH, "numpy"]):
        if subprocess.run(command).returncode != 0:
            raise SystemExit(f"cluster: {' '.join(command)} failed")


class Workers:
    def __init__(self, scenario, mode, build, box):
        self.programs = programs.Programs(box, build)
        nodes = [*scenario.trainer_nodes, *scenario.replicas.values()]
        plan = self.programs.write("plan.json", {
            "mode": mode, "trainer": scenario.trainer_layout, "engine": scenario.engine_layout, "replicas": len(scenario.replicas),
            "address": f"{box.address(nodes[0])}:{PORT}", "device": "eth0"})
        python = _python(build)
        self.all = [self.programs.start(f"gloo-{rank}", node, [python, os.path.join(HERE, "gloo_worker.py"), plan, str(rank)])
                    for rank, node in enumerate(nodes)]

    def __enter__(self):
        try:
            for worker in self.all:
                worker.wait_line("ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.programs.__exit__()

    def ask(self, line, answer):
        """Every worker's answer to a line."""
        before = [len(worker.lines) for worker in self.all]
        for worker in self.all:
            programs.say(worker, line)
        answers = [worker.lines[worker.wait_line(lambda text: text.startswith((answer, "torn")), after)]
                   for worker, after in zip(self.all, before)]
        if any(text.startswith("torn") for text in answers):
            raise programs.Failed(f"gloo: bytes differ: {answers}")
        return answers

    def run(self, version, box):
        self.ask(f"fill {version}", f"filled {version}")
        before = box.counters()
        with measure.Cpu() as cpu:
            words = [answer.split() for answer in self.ask(f"go {version}", f"done {version}")]
        begin, end = min(float(w[2]) for w in words), max(float(w[3]) for w in words)
        return run.Run(end - begin, cpu.idle(begin, end), run.moved(before, box.counters()))


def gloo(scenario, mode, count, build, say):
    """`count` runs after one that is not counted."""
    with netns.Box(scenario.links) as box:
        links = run.Links(box, scenario)
        least, broadcast = run.bound_of(scenario, links.goodput), run.allowed_by_bytes(scenario, links.goodput)
        for line in least.lines() + (broadcast.lines() if mode == "chain" else []):
            say("  " + line)
        with Workers(scenario, mode, build, box) as workers:
            runs = [workers.run(version, box) for version in range(1, count + 2)][1:]
            workers.ask(f"check {count + 1}", "checked")
        egress = measure.median([sum(links.payload(node, r.links[node]) for node in set(scenario.trainer_nodes)) / scenario.weights
                                 for r in runs])
        for r in runs:
            say(f"  {r.seconds:.3f} s  {r.seconds / least.seconds:.3f} of the bound  idle {r.idle:.0%}"
                f"{'  VOID: less than 15 % idle' if r.void else ''}")
        run.say_links(runs[-1], links, say)
        return run.result(scenario, f"gloo {mode}", runs, bound=least.seconds, ratio=run.median_of(runs) / least.seconds, egress=egress,
                          **({"allowed": broadcast.seconds / least.seconds} if mode == "chain" else {}))
