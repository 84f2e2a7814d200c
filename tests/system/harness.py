# SPDX-License-Identifier: Apache-2.0
"""Real processes for system tests: refitd, engine ranks that check every byte, trainer ranks. All end with the test."""
import atexit
import http.client
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

BUILD = os.environ.get("REFIT_BUILD", "build/dev")
SLOWDOWN = float(os.environ.get("REFIT_TEST_SLOWDOWN", "1"))  # of a build with a sanitizer
WAIT_S = 60 * SLOWDOWN


def tool(*parts):
    return os.path.join(BUILD, *parts)


# What a sanitizer writes to standard error, in a build with one.
REPORT = re.compile(r"ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:")


class Child:
    """A process whose lines of output can be waited for."""

    def __init__(self, name, command, stderr_path, stdin=subprocess.DEVNULL):
        self.name = name
        self.lines = []
        self.changed = threading.Condition()
        with open(stderr_path, "ab") as log:
            self.process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=log, text=True)
        self.pump = threading.Thread(target=self._read, daemon=True)
        self.pump.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def wait_line(self, wanted, after=0):
        """The index of the first line from `after` on for which `wanted` (a text to start with, or a function) holds."""
        test = wanted if callable(wanted) else lambda line: line.startswith(wanted)
        deadline = time.monotonic() + WAIT_S
        with self.changed:
            at = after
            while True:
                while at < len(self.lines):
                    if test(self.lines[at]):
                        return at
                    at += 1
                if not self.pump.is_alive() and at >= len(self.lines):
                    raise AssertionError(f"{self.name} ended; its lines: {self.lines[-10:]}")
                if time.monotonic() > deadline:
                    raise AssertionError(f"{self.name} did not print {wanted}; its lines: {self.lines[-10:]}")
                self.changed.wait(0.2)

    def kill(self, number=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self):
        code = self.process.wait(WAIT_S)
        self.pump.join(WAIT_S)
        return code

    def end(self):
        self.kill(signal.SIGCONT)
        self.kill(signal.SIGTERM)
        try:
            code = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.pump.join(5)
        self.process.stdout.close()
        return code


class Ports:
    """Ports of no other test while this process lives, as tests/support/port.c reserves them. Not such as the kernel gives out by
    itself: another process could get one before its listener is there, or while it restarts."""

    BLOCK = 50

    def __init__(self):
        self.names, self.left = [], []
        atexit.register(lambda: [name.close() for name in self.names])

    def reserve(self):
        """A block. Whoever has the abstract name has the ports; the kernel takes it back when the process ends."""
        for i in range(200):
            block = (os.getpid() + i) % 200
            name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                name.bind(f"\0refit-test-ports-{block}")
            except OSError:
                name.close()
                continue
            self.names.append(name)
            self.left += range(20000 + block * self.BLOCK, 20000 + (block + 1) * self.BLOCK)
            return
        raise AssertionError("all ports from 20000 to 29999 are reserved")

    def free(self):
        """One that nobody listens at."""
        while True:
            if not self.left:
                self.reserve()
            port = self.left.pop(0)
            with socket.socket() as probe:
                try:
                    probe.bind(("", port))
                    return port
                except OSError:
                    pass  # somebody who does not reserve


free_port = Ports().free


class Replica:
    """A refitd and its engine ranks: all of the layout's, or `count` of them from `first` on, for a pod of a replica that spans
    several; its readers then meet those of the other pods in the file `steps`."""

    host = "127.0.0.1"

    def __init__(self, test, name, layout, options=(), reader_options=(), first=0, count=None, steps=None):
        self.test, self.name, self.layout = test, name, layout
        self.first, self.ranks, self.total = first, count or layout["ranks"], layout["ranks"]
        self.steps = test.path(steps or name + ".steps")
        if count:
            options = ("--first-rank", str(first), "--ranks-total", str(self.total), *options)
        self.options, self.reader_options = list(options), list(reader_options)
        self.socket = test.path(name + ".sock")
        self.layout_path = test.write_json(name + ".layout.json", layout)
        self.readers = {}
        self.control_port = free_port()
        self.starts = 0
        self.start()

    def start(self):
        self.starts += 1
        ports = self.test.path(f"{self.name}.{self.starts}.ports")
        self.refitd = self.child(
            f"refitd-{self.name}", tool("sidecar", "refitd"), "--socket", self.socket, "--ranks", str(self.ranks),
            "--control", f"{self.host}:{self.control_port}", "--admin", f"{self.host}:0", "--data", f"{self.host}:0",
            "--ports-file", ports, "--log-level", "info", *self.options)
        self.ports = self.test.wait_json(ports, self.refitd)

    def start_readers(self, *ranks, wait=True):
        ranks = ranks or range(self.first, self.first + self.ranks)
        for rank in ranks:
            child = self.child(f"reader-{self.name}-{rank}", tool("tests", "system", "reader"), self.socket, self.layout_path,
                               str(rank), str(self.total), self.steps, *self.reader_options)
            self.readers[rank] = child
        for rank in ranks if wait else ():
            self.readers[rank].wait_line("attached")
        return self

    @property
    def url(self):
        return f"http://{self.host}:{self.control_port}"

    def child(self, name, *command):
        return self.test.child(name, *command)

    def connection(self, port=None):
        return http.client.HTTPConnection(self.host, port or self.control_port, timeout=WAIT_S)

    def call(self, method, path, body=None, port=None):
        connection = self.connection(port)
        try:
            text = None if body is None else body if isinstance(body, (str, bytes)) else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content[:1] in b"{[" and content else content.decode()
        finally:
            connection.close()

    def admin(self, path):
        return self.call("GET", path, port=self.ports["admin"])

    def weights(self):
        return self.call("GET", "/v1/weights")[1]

    def active(self):
        return (self.weights()["active"] or {}).get("version")

    def wait_session(self, wanted, refit="", seconds=WAIT_S):
        """Polls the latest (or named) refit until wanted(state) holds; returns the state."""
        deadline = time.monotonic() + seconds
        after = ""
        while time.monotonic() < deadline:
            status, state = self.call("GET", f"/refit{'/' + refit if refit else ''}{after}")
            if status == 200 and wanted(state):
                return state
            after = f"?after={state['sequence']}&wait_ms=200" if status == 200 and refit else ""
            if not after:
                time.sleep(0.005)
        raise AssertionError(f"{self.name}: refit did not get there: {state}")

    def wait_phase(self, *phases, version=None):
        """The refit to `version` (or the latest) is in one of these phases; it must not have ended before."""
        def reached(state):
            mine = version in (None, state["version"])
            if mine and state["terminal"] and state["phase"] not in phases:
                raise AssertionError(f"{self.name}: ended before it was in {phases}: {state}")
            return mine and state["phase"] in phases
        return self.wait_session(reached)

    def wait_end(self, version):
        return self.wait_session(lambda state: state["version"] == version and state["terminal"])

    def wait_step(self, version):
        for reader in self.readers.values():
            reader.wait_line(f"step {version} ")


class SystemTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="refit-system.")
        self.children = []

    def tearDown(self):
        torn = []
        for child in self.children:
            child.end()
            torn += [line for line in child.lines if line.startswith("torn")]
        if not self._outcome.success:
            self.show_logs()
        reports = [report for name in self.logs() for report in self.reports(name)]
        self.scratch.cleanup()
        self.assertEqual(torn, [])
        if reports:
            self.fail("\n".join(reports))

    def show_logs(self):
        for name in self.logs():
            with open(self.path(name), errors="replace") as log:
                sys.stderr.write(f"--- {name}\n" + "".join(log.readlines()[-15:]))

    def logs(self):
        return sorted(name for name in os.listdir(self.scratch.name) if name.endswith(".log"))

    def reports(self, name):
        with open(self.path(name), errors="replace") as file:
            text = file.read()
        found = REPORT.search(text)
        return [f"--- {name}\n{text[found.start():][:4000]}"] if found else []

    def path(self, name):
        return os.path.join(self.scratch.name, name)

    def keep(self, name):
        """A file that readers look at: they hold something for as long as it is there."""
        with open(self.path(name), "w", encoding="utf-8"):
            return self.path(name)

    def write_json(self, name, value):
        with open(self.path(name), "w") as file:
            json.dump(value, file)
        return self.path(name)

    def wait_json(self, path, child):
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                with open(path) as file:
                    return json.load(file)
            except (FileNotFoundError, ValueError):
                if child.process.poll() is not None:
                    with open(self.path(child.name + ".log"), errors="replace") as log:
                        raise AssertionError(f"{child.name} ended: {log.read()[-2000:]}") from None
                time.sleep(0.005)
        raise AssertionError(f"{path} did not appear")

    def child(self, name, *command):
        child = Child(name, command, self.path(name + ".log"))
        self.children.append(child)
        return child

    def replica(self, name, layout, *options, readers=True, reader_options=()):
        replica = Replica(self, name, layout, options, reader_options)
        return replica.start_readers() if readers else replica

    def publish(self, layout, versions, replicas, *options, wait=True):
        """Trainer ranks publish; returns rank 0's lines, or the children when wait is False."""
        path = self.write_json(f"source-{len(self.children)}.json", layout)
        lead = f"127.0.0.1:{free_port()}"
        text = ",".join(map(str, versions))
        urls = [replica if isinstance(replica, str) else replica.url for replica in replicas]
        ranks = [self.child(f"publisher-{rank}", tool("tests", "system", "publisher"), path, str(rank), str(layout["ranks"]), lead,
                            text, f"deadline={int(30000 * SLOWDOWN)}", *options, *(urls if rank == 0 else []))
                 for rank in range(layout["ranks"])]
        if not wait:
            return ranks
        for rank in ranks:
            rank.wait()
        return ranks[0].lines


class Proxy:
    """Stands before a replica's control API and passes requests on; what `rule(method, path)` says happens to one: None
    (nothing), "drop" (it never arrives), "mute" (it arrives, its answer does not), after either of which the proxy is dead until
    revived; "lose" (as mute, and the proxy lives on), a number (it never arrives, and that is the answer's status)."""

    def __init__(self, replica, rule):
        self.replica, self.rule, self.dead, self.hits = replica, rule, False, threading.Event()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def pass_on(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.close_connection = True
                what = "drop" if proxy.dead else proxy.rule(self.command, self.path)
                proxy.dead = proxy.dead or what in ("drop", "mute")
                if isinstance(what, int):
                    status, headers, content = what, [("Content-Length", "0")], b""
                elif what != "drop":
                    status, headers, content = proxy.forward(self.command, self.path, body)
                if what is None or isinstance(what, int):
                    self.send_response(status)
                    for name, value in headers:
                        if name.lower() not in ("connection", "date", "server"):
                            self.send_header(name, value)
                    self.send_header("Connection", "close")
                    self.end_headers()
                    self.wfile.write(content)
                else:
                    proxy.hits.set()

            do_GET = do_POST = do_PUT = pass_on

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def forward(self, method, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.replica.control_port, timeout=WAIT_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def revive(self):
        self.rule, self.dead = (lambda *_: None), False

    def close(self):
        self.server.shutdown()
        self.server.server_close()


# --- layouts: a small transformer, as a trainer cuts it and as an engine does -------------------------------------

def source_layout(ranks=2, scale=1):
    """FSDP: every tensor cut by rows, unevenly where it does not divide."""
    h, f, v = 64 * scale, 176 * scale, 1003
    tensors = [("embed.weight", [v, h]), ("norm.weight", [h])]
    families = [("layers.{l}.q.weight", [h, h]), ("layers.{l}.k.weight", [h // 4, h]), ("layers.{l}.v.weight", [h // 4, h]),
                ("layers.{l}.o.weight", [h, h]), ("layers.{l}.gate.weight", [f, h]), ("layers.{l}.up.weight", [f, h]),
                ("layers.{l}.down.weight", [h, f]), ("layers.{l}.norm.weight", [h])]
    entries = [{"tensor": n, "dtype": "BF16", "shape": s, "mesh": "m", "placements": ["Shard(0)"]} for n, s in tensors]
    entries += [{"tensor": n, "for": {"l": [0, 4]}, "dtype": "BF16", "shape": s, "mesh": "m", "placements": ["Shard(0)"]}
                for n, s in families]
    return {"format": "refit-layout/1", "ranks": ranks, "meshes": {"m": {"axes": ["fsdp"], "shape": [ranks]}}, "entries": entries}


def engine_layout(tp=2, scale=1):
    """Fused QKV and gate_up, down by columns, padded vocabulary."""
    h, f, v = 64 * scale, 176 * scale, 1003

    def piece(name, shape, placement):
        return {"tensor": name, "shape": shape, "placements": [placement]}

    family = {"for": {"l": [0, 4]}, "dtype": "BF16", "mesh": "tp"}
    entries = [
        {"tensor": "embed.weight", "dtype": "BF16", "shape": [v, h], "mesh": "tp", "placements": ["Shard(0)"],
         "pad": {"dim": 0, "to": 1024, "value": 7}},
        {"tensor": "norm.weight", "dtype": "BF16", "shape": [h], "mesh": "tp", "placements": ["Replicate"]},
        {"buffer": "layers.{l}.qkv.weight", **family,
         "pieces": [piece("layers.{l}.q.weight", [h, h], "Shard(0)"), piece("layers.{l}.k.weight", [h // 4, h], "Shard(0)"),
                    piece("layers.{l}.v.weight", [h // 4, h], "Shard(0)")]},
        {"buffer": "layers.{l}.gate_up.weight", **family,
         "pieces": [piece("layers.{l}.gate.weight", [f, h], "Shard(0)"), piece("layers.{l}.up.weight", [f, h], "Shard(0)")]},
        {"tensor": "layers.{l}.o.weight", **family, "shape": [h, h], "placements": ["Shard(1)"]},
        {"tensor": "layers.{l}.down.weight", **family, "shape": [h, f], "placements": ["Shard(1)"]},
        {"tensor": "layers.{l}.norm.weight", **family, "shape": [h], "placements": ["Replicate"]},
    ]
    return {"format": "refit-layout/1", "ranks": tp, "meshes": {"tp": {"axes": ["tp"], "shape": [tp]}}, "entries": entries}
