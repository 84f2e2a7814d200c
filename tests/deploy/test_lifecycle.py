# SPDX-License-Identifier: Apache-2.0
"""Starting and ending in order: refit exec, refit drain, what a service manager is told."""
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("REFIT_BUILD", os.path.join(ROOT, "build", "dev"))
WAIT_S = 60 * float(os.environ.get("REFIT_TEST_SLOWDOWN", "1"))
REFIT, REFITD = os.path.join(BUILD, "cli", "refit"), os.path.join(BUILD, "sidecar", "refitd")

# A refitd as `refit exec` sees it. Behaviour by environment: GO, a file to wait for before it is ready; NEVER, not ready at
# all; STUBBORN, deaf to SIGTERM. What happens goes to the file STORY, a line each.
STAND_IN = """#!{python}
import os, signal, socket, sys, time
def tell(line):
    with open(os.environ["STORY"], "a") as story:
        story.write(line + "\\n")
def end(number, frame):
    tell("refitd got SIGTERM")
    if not os.environ.get("STUBBORN"):
        sys.exit(0)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGHUP, lambda number, frame: tell("refitd got SIGHUP"))
tell(f"refitd {{os.getpid()}} started, protection {{os.environ.get('REFIT_PROTECTION')}}")
while os.environ.get("GO") and not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
if not os.environ.get("NEVER"):
    name = os.environ["NOTIFY_SOCKET"]
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"STATUS=x\\nREADY=1", "\\0" + name[1:])
while True:
    signal.pause()
"""


def wait_for(what, condition):
    deadline = time.monotonic() + WAIT_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {WAIT_S} s for {what}")
        time.sleep(0.01)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(") ", 1)[1][0] != "Z"
    except FileNotFoundError:
        return False


class Case(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="refit-lifecycle.")
        self.addCleanup(shutil.rmtree, self.directory)
        self.addCleanup(self.look_for_reports)
        self.story = self.path("story")
        open(self.story, "w", encoding="utf-8").close()

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    def lines(self):
        with open(self.story, encoding="utf-8") as file:
            return file.read().splitlines()

    def wait_line(self, text, count=1):
        return wait_for(f"'{text}' in {self.lines()}", lambda: len([line for line in self.lines() if text in line]) >= count)

    def start(self, *command, env=None, **more):
        with open(self.path("stderr"), "ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                                       env={**os.environ, **(env or {})}, **more)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        """Politely, so that children end before the directory goes."""
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def look_for_reports(self):
        """What a sanitizer said in any of the processes."""
        with open(self.path("stderr"), "a+", encoding="utf-8", errors="replace") as file:
            file.seek(0)
            self.assertNotRegex(file.read(), r"ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:")


class Exec(Case):
    def setUp(self):
        super().setUp()
        self.refitd = self.path("refitd")
        with open(self.refitd, "w", encoding="utf-8") as file:
            file.write(STAND_IN.format(python=sys.executable))
        os.chmod(self.refitd, 0o755)

    def start_exec(self, *engine, options=(), env=None, before=(), **more):
        return self.start(*before, REFIT, "exec", "--refitd", self.refitd, *options, "--", *engine,
                          env={"STORY": self.story, **(env or {})}, **more)

    def engine(self, script):
        """A shell that says when it started, then runs the script."""
        return ("sh", "-c", f'echo "engine $$ started" >> "$STORY"; {script}')

    def refitd_pid(self, which=-1):
        return int([line.split()[1] for line in self.lines() if line.startswith("refitd ") and "started" in line][which])

    def test_the_engine_starts_when_refitd_is_ready(self):
        process = self.start_exec(*self.engine("exit 0"), env={"GO": self.path("go")})
        self.wait_line("refitd")
        self.assertEqual(len(self.lines()), 1)
        open(self.path("go"), "w", encoding="utf-8").close()
        self.assertEqual(process.wait(WAIT_S), 0)
        self.assertIn("engine", self.lines()[1])

    def test_the_exit_status_is_the_engine_s(self):
        self.assertEqual(self.start_exec(*self.engine("exit 7")).wait(WAIT_S), 7)
        self.assertEqual(self.start_exec(*self.engine("kill -KILL $$")).wait(WAIT_S), 128 + 9)
        self.assertEqual(self.start_exec("/nonexistent/engine").wait(WAIT_S), 127)

    def test_at_the_end_refitd_is_gone(self):
        self.assertEqual(self.start_exec(*self.engine("exit 0")).wait(WAIT_S), 0)
        self.assertFalse(alive(self.refitd_pid()))
        self.assertEqual(self.lines()[-1], "refitd got SIGTERM")

    def test_sigterm_ends_the_engine_first_and_refitd_behind_it(self):
        process = self.start_exec(*self.engine('trap "echo engine got SIGTERM >> $STORY; sleep 0.2; echo engine ends >> $STORY; exit 3"'
                                               ' TERM; echo trap set >> "$STORY"; while :; do sleep 0.05; done'))
        self.wait_line("trap set")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WAIT_S), 3)
        self.assertEqual(self.lines()[-3:], ["engine got SIGTERM", "engine ends", "refitd got SIGTERM"])

    def test_an_engine_that_does_not_end_is_killed_after_its_grace(self):
        process = self.start_exec(*self.engine('trap "" TERM; echo trap set >> "$STORY"; while :; do sleep 0.05; done'),
                                  options=("--grace", "200ms"))
        self.wait_line("trap set")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WAIT_S), 128 + 9)
        self.assertEqual(self.lines()[-1], "refitd got SIGTERM")

    def test_a_refitd_that_does_not_end_is_killed_after_its_grace(self):
        process = self.start_exec(*self.engine("exit 4"), options=("--refitd-grace", "200ms"), env={"STUBBORN": "1"})
        self.assertEqual(process.wait(WAIT_S), 4)
        self.assertFalse(alive(self.refitd_pid()))

    def test_a_refitd_that_dies_is_started_again_and_the_engine_lives_on(self):
        process = self.start_exec(*self.engine("exec sleep 1000"))
        self.wait_line("engine")
        first = self.refitd_pid()
        for count in (2, 3):
            os.kill(self.refitd_pid(), signal.SIGKILL)
            self.wait_line("refitd", count)
        self.assertNotEqual(self.refitd_pid(), first)
        self.assertEqual(len([line for line in self.lines() if line.startswith("engine")]), 1)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WAIT_S), 128 + 15)

    def test_a_refitd_that_is_not_ready_in_time_ends_it_and_no_engine_starts(self):
        process = self.start_exec(*self.engine("exit 0"), options=("--start-timeout", "200ms"), env={"NEVER": "1"})
        self.assertEqual(process.wait(WAIT_S), 1)
        self.assertFalse([line for line in self.lines() if line.startswith("engine")])

    def test_a_refitd_that_can_not_start_ends_it_with_its_status(self):
        process = self.start(REFIT, "exec", "--refitd", REFITD, "--", *self.engine("exit 0"), env={"STORY": self.story, "REFIT_SLOTS": "99"})
        self.assertEqual(process.wait(WAIT_S), 2)
        self.assertEqual(self.lines(), [])

    def test_sigterm_before_the_engine_started_ends_refitd(self):
        process = self.start_exec(*self.engine("exit 0"), env={"NEVER": "1"})
        self.wait_line("refitd")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WAIT_S), 128 + 15)
        self.assertEqual(self.lines()[1:], ["refitd got SIGTERM"])

    def test_sighup_asks_refitd_and_other_signals_go_to_the_engine(self):
        process = self.start_exec(*self.engine('trap "echo engine got USR1 >> $STORY" USR1; echo trap set >> "$STORY";'
                                               ' while :; do sleep 0.05; done'))
        self.wait_line("trap set")
        process.send_signal(signal.SIGHUP)
        self.wait_line("refitd got SIGHUP")
        process.send_signal(signal.SIGUSR1)
        self.wait_line("engine got USR1")
        self.assertIsNone(process.poll())

    def test_the_engine_starts_with_no_signal_blocked_or_ignored(self):
        def ignore_nothing():  # of what whoever started this test ignores: nohup and shells in the background do
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
        process = self.start_exec("sh", "-c", 'grep -E "^Sig(Blk|Ign)" /proc/self/status >> "$STORY"; echo "notify=$NOTIFY_SOCKET" >> "$STORY"',
                                  preexec_fn=ignore_nothing)
        self.assertEqual(process.wait(WAIT_S), 0)
        masks = dict(line.split(":\t") for line in self.lines() if line.startswith("Sig"))
        # 32 and 33 are the C library's own: sigaction refuses them, so that a parent that ignores them is inherited from for good.
        self.assertEqual({key: int(value, 16) & ~(3 << 31) for key, value in masks.items()}, {"SigBlk": 0, "SigIgn": 0})
        self.assertIn("notify=", self.lines())

    def test_slots_are_sealed_unless_told_otherwise(self):
        self.start_exec(*self.engine("exit 0")).wait(WAIT_S)
        self.start_exec(*self.engine("exit 0"), env={"REFIT_PROTECTION": "uid"}).wait(WAIT_S)
        self.assertEqual([line.split()[-1] for line in self.lines() if "protection" in line], ["seal", "uid"])

    def test_slots_on_gpus_have_no_seals(self):
        self.start_exec(*self.engine("exit 0"), env={"REFIT_MEMORY": "cuda:0"}).wait(WAIT_S)
        self.assertEqual([line.split()[-1] for line in self.lines() if "protection" in line], ["None"])

    def test_as_process_1_it_takes_in_orphans(self):
        done = subprocess.run(["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true"], capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            self.skipTest(f"no namespaces here: {done.stderr.strip()}")
        # The orphan's parent ends before it; then its zombie has to go, or this loop never ends.
        script = ('sh -c "sleep 0.1 & echo \\$! > orphan"; while kill -0 "$(cat orphan)" 2>/dev/null; do sleep 0.02; done;'
                  ' echo "pid 1 is $(cat /proc/1/comm)" >> "$STORY"; exit 5')
        process = self.start("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", REFIT, "exec", "--refitd",
                             self.refitd, "--", "sh", "-c", script, env={"STORY": self.story}, cwd=self.directory)
        self.assertEqual(process.wait(WAIT_S), 5)
        self.assertIn("pid 1 is refit", self.lines())

    def test_install_copies_what_the_manifest_names(self):
        bundle, target = self.path("bundle"), self.path("target")
        os.makedirs(os.path.join(bundle, "bin"))
        os.makedirs(os.path.join(bundle, "lib"))
        os.mkdir(target)
        shutil.copy2(REFIT, os.path.join(bundle, "bin", "refit"))
        for name, text in (("lib/libx.so.1", "library"), ("lib/secret", "not listed"), ("MANIFEST", "bin/refit\nlib/libx.so.1\n")):
            with open(os.path.join(bundle, name), "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run([os.path.join(bundle, "bin", "refit"), "exec", "--install", target], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, f"2 files installed in {target}\n"), done.stderr)
        self.assertEqual(sorted(os.listdir(os.path.join(target, "lib"))), ["libx.so.1"])
        self.assertEqual(subprocess.run([os.path.join(target, "bin", "refit"), "version"], capture_output=True, check=False).returncode, 0)
        with open(os.path.join(bundle, "MANIFEST"), "w", encoding="utf-8") as file:
            file.write("../story\n")
        done = subprocess.run([os.path.join(bundle, "bin", "refit"), "exec", "--install", target], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("../story", done.stderr)

    def test_wrong_usage_is_told(self):
        for arguments in ((), ("--install", "x", "--", "true"), ("--",), ("--grace", "soon", "--", "true"), ("engine",)):
            done = subprocess.run([REFIT, "exec", *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("refit exec", done.stderr)


class Refitd(Case):
    """A real refitd on ports of the kernel's choice."""

    def start_refitd(self, *options, env=None):
        ports = self.path("ports")
        if os.path.exists(ports):
            os.unlink(ports)
        process = self.start(REFITD, "--socket", self.path("s"), "--control", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data",
                             "127.0.0.1:0", "--ports-file", ports, *options, env=env)

        def read():
            self.assertIsNone(process.poll(), "refitd ended")
            try:
                with open(ports, encoding="utf-8") as file:
                    return json.load(file)
            except FileNotFoundError:
                return None
        self.ports = wait_for("refitd's ports", read)
        return process

    def call(self, method, listener, path, body=None, host="127.0.0.1"):
        connection = http.client.HTTPConnection(host, self.ports[listener], timeout=WAIT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def drain(self, timeout):
        return subprocess.run([REFIT, "drain", "--admin", f"127.0.0.1:{self.ports['admin']}", "--timeout", timeout], capture_output=True,
                              text=True, timeout=WAIT_S, check=False)


class Drain(Refitd):
    def test_without_an_engine_it_ends_at_once_and_nothing_new_begins(self):
        process = self.start_refitd()
        done = self.drain("30s")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.call("GET", "admin", "/livez")[0], 200)
        self.assertEqual(self.call("GET", "admin", "/readyz")[0], 503)
        status, problem = self.call("POST", "control", "/refit", {"version": 1})
        self.assertEqual(status, 503)
        self.assertIn("draining", problem["type"])
        self.assertEqual(self.call("GET", "control", "/v1/weights")[0], 200)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WAIT_S), 0)

    def test_it_waits_for_the_engine_and_says_who_is_left(self):
        engine = os.path.join(BUILD, "examples", "minilm")
        if not os.access(engine, os.X_OK):
            self.skipTest(f"{engine} is not built")
        self.start_refitd()
        process = self.start(engine, "--socket", self.path("s"))
        wait_for("the engine", lambda: "refit_ranks_attached 1" in self.metrics())
        done = self.drain("300ms")
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 engine ranks attached", done.stderr)
        waiting = self.start(REFIT, "drain", "--admin", f"127.0.0.1:{self.ports['admin']}", "--timeout", "60s")
        self.assertEqual(self.call("POST", "admin", "/drain")[1], {"draining": True, "ranks_attached": 1, "drained": False})
        self.assertIsNone(waiting.poll())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(waiting.wait(WAIT_S), 0)

    def metrics(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["admin"], timeout=WAIT_S)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def test_nobody_there_is_an_error(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))  # and does not listen
            self.ports = {"admin": free.getsockname()[1]}
            done = self.drain("1s")
        self.assertEqual(done.returncode, 1)
        self.assertIn("connect", done.stderr)

    def test_only_from_loopback(self):
        script = f"""
import json, os, subprocess, sys, time, urllib.request, urllib.error
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "add", "192.0.2.1/32", "dev", "lo"], check=True)
refitd = subprocess.Popen([{REFITD!r}, "--socket", {self.path('s')!r}, "--control", "127.0.0.1:0", "--admin", "0.0.0.0:7071",
                           "--data", "127.0.0.1:0", "--ports-file", {self.path('p')!r}])
try:
    while not os.path.exists({self.path('p')!r}):
        assert refitd.poll() is None
        time.sleep(0.01)
    def post(host):
        try:
            return urllib.request.urlopen(urllib.request.Request(f"http://{{host}}:7071/drain", method="POST")).status
        except urllib.error.HTTPError as error:
            return error.code
    print(post("192.0.2.1"), urllib.request.urlopen("http://192.0.2.1:7071/livez").status, post("127.0.0.1"))
finally:
    refitd.terminate()
    refitd.wait()
"""
        done = subprocess.run(["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", script], capture_output=True, text=True,
                              timeout=WAIT_S, check=False)
        if done.returncode != 0 and "unshare:" in done.stderr:
            self.skipTest(f"no namespaces here: {done.stderr.strip()}")
        self.assertEqual(done.stdout.split(), ["403", "200", "200"], done.stderr)


class Whole(Refitd):
    """refit exec with the real refitd and the reference engine: what a container with a GPU of its own runs."""

    def test_refitd_dies_under_it_and_the_engine_hands_its_slots_back(self):
        engine, maker = (os.path.join(BUILD, "examples", name) for name in ("minilm", "minilm-checkpoint"))
        if not os.access(engine, os.X_OK):
            self.skipTest(f"{engine} is not built")
        subprocess.run([maker, "generate", self.path("v1.safetensors"), "3"], check=True)
        process = self.start(REFIT, "exec", "--refitd", REFITD, "--", engine, "--socket", self.path("s"), env={
            "REFIT_SOCKET": self.path("s"), "REFIT_CONTROL": "127.0.0.1:0", "REFIT_ADMIN": "127.0.0.1:0", "REFIT_DATA": "127.0.0.1:0",
            "REFIT_PORTS_FILE": self.path("ports"), "REFIT_CHECKPOINT_ROOT": self.directory, "REFIT_INITIAL_CHECKPOINT": "v1.safetensors"})
        first = self.wait_ready()
        os.unlink(self.path("ports"))
        os.kill(self.child(process.pid, "refitd"), signal.SIGKILL)
        self.assertEqual(self.wait_ready(), first)
        with open(self.path("stderr"), encoding="utf-8") as file:
            self.assertIn("slots taken back", file.read())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WAIT_S), 0)

    def wait_ready(self):
        def look():
            try:
                with open(self.path("ports"), encoding="utf-8") as file:
                    self.ports = json.load(file)
                status, body = self.call("GET", "admin", "/readyz")
                return status == 200 and (body["version"], body["digest"], body["slot"])
            except OSError:
                return None
        return wait_for("a version to be served", look)

    @staticmethod
    def child(parent, name):
        with open(f"/proc/{parent}/task/{parent}/children", encoding="utf-8") as file:
            for pid in file.read().split():
                with open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
                    if comm.read().strip() == name:
                        return int(pid)
        raise AssertionError(f"{parent} has no child {name}")


class Notify(Refitd):
    """The datagrams of sd_notify(3)."""

    def listen(self, address):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(listener.close)
        listener.bind(address)
        listener.settimeout(WAIT_S)
        return listener

    def test_ready_stopping_and_watchdog(self):
        path = self.path("notify")
        listener = self.listen(path)
        process = self.start_refitd(env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "3000000"})
        self.assertEqual(listener.recv(4096), b"READY=1")
        self.assertEqual(self.call("GET", "admin", "/startupz")[0], 200)
        self.assertEqual(listener.recv(4096), b"WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        said = listener.recv(4096)
        while said == b"WATCHDOG=1":
            said = listener.recv(4096)
        self.assertEqual(said, b"STOPPING=1")
        self.assertEqual(process.wait(WAIT_S), 0)

    def test_abstract_addresses_and_a_watchdog_of_another_process(self):
        name = f"refit-test-{os.getpid()}"
        listener = self.listen("\0" + name)
        process = self.start_refitd(env={"NOTIFY_SOCKET": "@" + name, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"})
        self.assertEqual(listener.recv(4096), b"READY=1")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WAIT_S), 0)
        self.assertEqual(listener.recv(4096), b"STOPPING=1")

    def test_a_manager_that_does_not_read_or_is_gone_holds_up_nothing(self):
        for address in (self.path("nobody"), "relative", "@", self.path("deaf")):
            if address.endswith("deaf"):
                deaf = self.listen(address)
                fill = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self.addCleanup(fill.close)
                fill.setblocking(False)
                try:
                    while True:
                        fill.sendto(b"x" * 1000, address)
                except BlockingIOError:
                    self.assertIsNotNone(deaf)
            process = self.start_refitd(env={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
            self.assertEqual(self.call("GET", "admin", "/livez")[0], 200)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(WAIT_S), 0)


if __name__ == "__main__":
    unittest.main()
