# SPDX-License-Identifier: Apache-2.0
"""The programs of a scenario on their nodes: refitd with its engine ranks, and the trainer's ranks."""
import http.client
import json
import os
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "system"))
import harness  # noqa: E402

CONTROL, LEAD, PORTS = 7070, 7000, 10  # of replica n on a node: CONTROL + PORTS * n
STEP_S = 120                           # for a step that is not timed
ANSWER_S = 5                           # for an answer on the control API
harness.WAIT_S = STEP_S


class Failed(Exception):
    """A program did not do what it should; says which, and its last words."""


def find(build, *choices):
    paths = [os.path.join(build, choice) for choice in choices]
    found = next((path for path in paths if os.path.exists(path)), None)
    if not found:
        raise Failed(f"{paths[0]} is not built: make bench, or cmake --build {build}")
    return found


def poll(what, seconds, look):
    """What `look` returns, as soon as it is true."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)


class Programs:
    """All children of one scenario on one box; ended in the opposite order."""

    def __init__(self, box, build):
        self.box, self.build = box, build
        self.children = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in reversed(list(self.children)):
            self.end(child)

    def path(self, name):
        return os.path.join(self.box.scratch, name)

    def write(self, name, document):
        with open(self.path(name), "w") as file:
            json.dump(document, file)
        return self.path(name)

    def start(self, name, node, command, cpus=None):
        child = harness.Child(name, self.box.command(node, command, cpus), self.path(name + ".log"), stdin=subprocess.PIPE)
        self.children.append(child)
        return child

    def end(self, child):
        self.children.remove(child)
        try:
            child.process.stdin.close()
        except BrokenPipeError:  # what it was told last did not reach it
            pass
        child.end()

    def last_words(self, name):
        with open(self.path(name + ".log"), errors="replace") as file:
            return file.read()[-1500:]


def say(child, line):
    try:
        child.process.stdin.write(line + "\n")
        child.process.stdin.flush()
    except BrokenPipeError:
        raise Failed(f"{child.name} ended; its lines: {child.lines[-5:]}") from None


class Connection(http.client.HTTPConnection):
    def __init__(self, box, node, port):
        super().__init__(box.address(node), port, timeout=ANSWER_S)
        self.box, self.node = box, node

    def connect(self):
        self.sock = self.box.connect(self.node, self.port, self.timeout)


class Replica:
    """A refitd and its engine ranks on one node."""

    def __init__(self, programs, name, node, number, layout, refitd=(), engine=(), engine_cpus=None, other_cpus=None):
        self.programs, self.name, self.node = programs, name, node
        self.port = CONTROL + PORTS * number
        self.layout, self.ranks = layout, layout["ranks"]
        self.options, self.engine_options = list(refitd), list(engine)
        self.engine_cpus, self.other_cpus = engine_cpus, other_cpus
        self.layout_path = programs.write(f"{name}.layout.json", layout)
        self.socket = programs.path(name + ".sock")
        self.connection, self.asking = None, threading.Lock()
        self.version = 0  # as a joiner: the last it was given
        self.engines = []
        self.start_refitd()

    @property
    def url(self):
        return f"http://{self.programs.box.address(self.node)}:{self.port}"

    def start_refitd(self):
        address = self.programs.box.address(self.node)
        self.refitd = self.programs.start(f"refitd-{self.name}", self.node, [
            find(self.programs.build, "sidecar/refitd"), "--socket", self.socket, "--ranks", str(self.ranks), "--layout", self.layout_path,
            "--control", f"{address}:{self.port}", "--insecure-control", "--admin", f"{address}:{self.port + 1}",
            "--data", f"{address}:{self.port + 2}", "--log-level", "warn", *self.options], self.other_cpus)

    def start_engines(self):
        for rank in range(self.ranks):
            options = self.engine_options if rank == 0 else []
            self.engines.append(self.programs.start(f"engine-{self.name}-{rank}", self.node, [
                find(self.programs.build, "bench/cluster/bench_engine"), self.socket, self.layout_path, str(rank), str(self.ranks),
                *options], self.engine_cpus))

    def wait_ready(self):
        """Engines are attached, so that slots are made and touched."""
        for engine in self.engines:
            engine.wait_line("attached")
        poll(f"{self.name} has its engines", STEP_S, self._has_engines)

    def _has_engines(self):
        weights = self.get("/v1/weights")
        return weights and not weights["adopting"] and all(rank["attached"] for rank in weights["ranks"])

    def get(self, path):
        """None when it does not answer."""
        with self.asking:
            return self._get(path)

    def _get(self, path):
        for connection in (self.connection, None):
            try:
                if connection is None:
                    connection = Connection(self.programs.box, self.node, self.port)
                connection.request("GET", path)
                answer = connection.getresponse()
                content = json.loads(answer.read())
                self.connection = connection
                return content if answer.status == 200 else None
            except (OSError, http.client.HTTPException):
                if connection:
                    connection.close()
                self.connection = None
        return None

    def close(self):
        if self.connection:
            self.connection.close()

    def refit(self, version):
        """The state of its refit to `version`, or None."""
        state = self.get("/refit")
        return state if state and state["version"] == version else None

    def check(self, version):
        """Every rank compares every byte."""
        before = [len(engine.lines) for engine in self.engines]
        for engine in self.engines:
            say(engine, f"check {version}")
        for engine, after in zip(self.engines, before):
            line = engine.lines[engine.wait_line(lambda line: line.startswith(("checked", "torn", "unknown")), after)]
            if not line.startswith("checked"):
                raise Failed(f"{engine.name}: {line}")

    def ask(self, line, answer):
        engine = self.engines[0]
        after = len(engine.lines)
        say(engine, line)
        return engine.lines[engine.wait_line(answer, after)]


class Trainer:
    """The trainer's ranks, which publish what they are told."""

    def __init__(self, programs, name, layout, nodes, urls, deadline_s, strategy, options=(), cpus=None, port=LEAD):
        self.name = name
        path = programs.write(name + ".layout.json", layout)
        lead = f"{programs.box.address(nodes[0])}:{port}"
        program = find(programs.build, "bench/bench_publisher", "tests/system/publisher")
        self.programs = programs
        self.ranks = [programs.start(f"{name}-{rank}", node, [
            program, path, str(rank), str(layout["ranks"]), lead, "-", "transport=tcp", f"deadline={int(deadline_s * 1000)}",
            f"name={name}", f"strategy={strategy}", *options, *(urls if rank == 0 else [])], cpus) for rank, node in enumerate(nodes)]

    def fill(self, version):
        for rank in self.ranks:
            say(rank, f"fill {version}")
        for rank in self.ranks:
            rank.wait_line(f"filled {version}")

    def begin(self, version):
        for rank in self.ranks:
            say(rank, f"publish {version}")

    def wait(self, version):
        """Rank 0's line about this publish."""
        def ended(line):
            return line.startswith((f"ok {version} ", f"failed {version} "))

        for rank in reversed(self.ranks):
            at = rank.wait_line(ended)
        return self.ranks[0].lines[at]

    def end(self):
        for rank in self.ranks:
            rank.process.stdin.close()
        for rank in self.ranks:
            self.programs.end(rank)
