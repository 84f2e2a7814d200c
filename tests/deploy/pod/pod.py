# SPDX-License-Identifier: Apache-2.0
"""The chart's pod under podman, and this script in the kubelet's place: fsGroup on volumes, probes, preStop.

Images are built from what the build tree holds and the host's own libraries; no registry is asked.
"""
import ctypes
import http.client
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
BUILD = os.environ.get("REFIT_BUILD", os.path.join(ROOT, "build", "dev"))
sys.path.insert(0, os.path.join(ROOT, "tests", "charts"))
import chart  # noqa: E402

NAME = f"refit-pod-{os.getpid()}"  # several may run on one machine
WAIT_S = 60
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""


def tool(*parts):
    return os.path.join(BUILD, *parts)


def run(*command, check=True, timeout=300):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def wait_for(what, condition, seconds=WAIT_S):
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.005)


class Inside(threading.Thread):
    """A thread in a process's network namespace: what it connects to is the pod's loopback."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.jobs = pid, queue.Queue()
        self.start()

    def run(self):
        with open(f"/proc/{self.pid}/ns/net", "rb") as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            failed = libc.setns(namespace.fileno(), 0x40000000) != 0  # CLONE_NEWNET, of this thread
            problem = OSError(ctypes.get_errno(), "setns") if failed else None
        while True:
            job, answer = self.jobs.get()
            if job is None:
                return
            try:
                if problem:
                    raise problem
                answer.put((job(), None))
            except BaseException as error:  # noqa: B902: handed to the caller
                answer.put((None, error))

    def start_job(self, job):
        answer = queue.Queue()
        self.jobs.put((job, answer))
        return answer

    def __call__(self, job):
        value, error = self.start_job(job).get(timeout=600)
        if error:
            raise error
        return value

    def stop(self):
        self.jobs.put((None, None))
        self.join(10)


def http_call(method, port, path, body=None, timeout=30):
    """(status, parsed body); status 0 when nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content[:1] == b"{" else content.decode()
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    finally:
        connection.close()


class Load:
    """Requests to the engine, one after the other, each answer held against what a cold engine says for that version."""

    PROMPTS = [[101, 7592, 2088, 102], [101, 2023, 2003, 1037, 6251, 102], [101, 4937, 102]]

    def __init__(self, pid, port, cold):
        self.inside, self.port, self.cold = Inside(pid), port, cold
        self.ending = threading.Event()
        self.answered, self.problems, self.versions = 0, [], {}
        self.done = self.inside.start_job(self.work)

    def work(self):
        while not self.ending.is_set():
            which = self.answered % len(self.PROMPTS)
            status, answer = http_call("POST", self.port, "/embed", {"tokens": self.PROMPTS[which]})
            self.answered += 1
            if status != 200:
                self.problems.append(f"{status}: {answer}")
                continue
            version = answer["version"]
            self.versions[version] = self.versions.get(version, 0) + 1
            if answer["embedding"] != self.cold[version][which]:
                self.problems.append(f"version {version}: not what a cold engine answers")

    def wait_answers(self, version, more=50):
        target = self.versions.get(version, 0) + more
        wait_for(f"{more} answers of version {version}", lambda: self.versions.get(version, 0) >= target)

    def stop(self):
        self.ending.set()
        self.done.get(timeout=60)
        self.inside.stop()
        return self.answered, self.problems


def cold_answers(path, directory):
    """What an engine answers that loaded the file without Refit."""
    ports = os.path.join(directory, "cold.ports")
    process = subprocess.Popen([tool("examples", "minilm"), "--cold", path, "--ports-file", ports], stdin=subprocess.DEVNULL)
    try:
        wait_for("the cold engine", lambda: os.path.exists(ports))
        with open(ports, encoding="utf-8") as file:
            port = json.load(file)["http"]
        return [http_call("POST", port, "/embed", {"tokens": tokens})[1]["embedding"] for tokens in Load.PROMPTS]
    finally:
        process.terminate()
        process.wait(30)
        os.unlink(ports)


def require_podman():
    chart.require_tools()
    for program in ("podman", "buildah", "runc", "patchelf"):
        if not shutil.which(program):
            raise unittest.SkipTest(f"pod not run: {program} is not installed (scripts/setup.sh pod)")
    if os.geteuid() != 0:
        raise unittest.SkipTest("pod not run: needs root, to enter the pod's network and to send signals to its processes")


class Images:
    """Images and checkpoints, for all pods of one run; gone after remove()."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="refit-pod.")
        os.chmod(self.directory, 0o755)
        with open(self.path("containers.conf"), "w", encoding="utf-8") as file:
            file.write(CONTAINERS_CONF)
        os.environ["CONTAINERS_CONF"] = self.path("containers.conf")
        self.refit, self.engine = f"localhost/refit:{NAME}", f"localhost/refit-minilm:{NAME}"

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    def build(self):
        run(os.path.join(ROOT, "deploy", "image.sh"), "--from-build", BUILD, "--tag", self.refit)
        context = self.path("engine")
        run(os.path.join(ROOT, "deploy", "bundle.sh"), context, "/opt/minilm", tool("examples", "minilm"))
        with open(self.path("Containerfile"), "w", encoding="utf-8") as file:
            file.write("FROM scratch\nCOPY . /\n")
        run("buildah", "bud", "--layers=false", "-f", self.path("Containerfile"), "-t", self.engine, context)

    def try_host(self):
        """Whether containers run here at all."""
        done = run("podman", "run", "--rm", "--network", "none", "--read-only", self.refit, "--version", check=False)
        if done.returncode != 0:
            raise unittest.SkipTest(f"pod not run: podman can't run a container on this host: {done.stderr.strip()[-300:]}")
        # In a root that was only changed into (chroot), the runtime can't pivot, and a second process lands in the host's.
        name = f"refit-try-{NAME}"
        run("podman", "run", "--detach", "--name", name, "--network", "none", "--read-only", self.refit,
            "--socket", "/tmp/refitd.sock")
        done = run("podman", "exec", name, "/opt/refit/bin/refit", "--version", check=False)
        run("podman", "rm", "--force", "--time", "0", name)
        if done.returncode != 0:
            raise unittest.SkipTest(f"pod not run: podman can't enter a container on this host: {done.stderr.strip()[-300:]}")

    def make_checkpoints(self):
        """Versions 1 to 3, and what cold engines answer with them."""
        maker, directory = tool("examples", "minilm-checkpoint"), self.path("checkpoints")
        os.mkdir(directory, 0o755)
        run(maker, "generate", os.path.join(directory, "v1.safetensors"), "11")
        for version in (2, 3):
            run(maker, "derive", os.path.join(directory, f"v{version - 1}.safetensors"),
                os.path.join(directory, f"v{version}.safetensors"), str(version))
        self.cold = {v: cold_answers(os.path.join(directory, f"v{v}.safetensors"), self.directory) for v in (1, 2, 3)}

    def remove(self):
        for image in (self.refit, self.engine):
            run("podman", "rmi", "--force", image, check=False)
        shutil.rmtree(self.directory)


class Pod:
    """One pod of the chart; it and its volumes are gone after stop()."""

    def __init__(self, images, name, *values):
        self.images, self.name, self.values = images, f"{NAME}-{name}", values
        self.refitd, self.engine = f"{self.name}-pod-0-refitd", f"{self.name}-pod-0-engine"
        self.playing, self.inside, self.volumes = False, None, []
        self.file = images.path(f"{name}.yaml")

    def render(self):
        import yaml
        checkpoints = self.images.path("checkpoints")
        self.manifest = chart.only(chart.render("-f", os.path.join(HERE, "values.yaml"), "--set", f"fullnameOverride={self.name}",
                                                "--set", f"image.tag={NAME},engine.image.tag={NAME}",
                                                "--set", f"weights.checkpoints.volume.hostPath.path={checkpoints}", *self.values),
                                   "Deployment")
        self.spec = self.manifest["spec"]["template"]["spec"]
        played = json.loads(json.dumps(self.manifest))
        spec = played["spec"]["template"]["spec"]
        # An init container that podman keeps: removing one right after its end fails now and then, and the pod with it.
        played["metadata"]["annotations"] = {"io.podman.annotations.init.container.type": "always"}
        for container in spec["containers"]:
            container.pop("ports")  # this podman maps each of them to the host, which a pod without a network can't
            container["resources"]["limits"].pop("nvidia.com/gpu", None)
        for volume in spec["volumes"]:
            if "emptyDir" in volume:  # a volume of that name, shared by all pods: its name has to be this pod's
                self.rename(spec, volume, f"{self.name}-{volume['name']}")
        with open(self.file, "w", encoding="utf-8") as file:
            yaml.safe_dump(played, file)

    def rename(self, spec, volume, name):
        for container in spec.get("initContainers", []) + spec["containers"]:
            for mount in container["volumeMounts"]:
                if mount["name"] == volume["name"]:
                    mount["name"] = name
        volume["name"] = name
        self.volumes.append(name)

    def make_volumes(self):
        """What the kubelet does for fsGroup, which podman ignores."""
        group = self.spec["securityContext"]["fsGroup"]
        for name in self.volumes:
            run("podman", "volume", "create", name)
            where = run("podman", "volume", "inspect", "-f", "{{.Mountpoint}}", name).stdout.strip()
            os.chown(where, -1, group)
            os.chmod(where, 0o2775)

    def start(self):
        self.render()
        self.playing = True
        self.make_volumes()
        run("podman", "play", "kube", "--network", "none", self.file)
        self.inside = Inside(self.pid(self.engine))

    def pid(self, container):
        return wait_for(f"{container} to run",
                        lambda: int(run("podman", "inspect", "-f", "{{.State.Pid}}", container, check=False).stdout or 0))

    def exec(self, container, *command, check=True):
        return run("podman", "exec", container, *command, check=check)

    def log(self, container):
        done = run("podman", "logs", container, check=False)
        return done.stdout + done.stderr

    def get(self, port, path, method="GET", body=None):
        return self.inside(lambda: http_call(method, port, path, body))

    def version(self):
        return ((self.get(7070, "/v1/weights")[1] or {}).get("active") or {}).get("version")

    def push(self, container, version):
        """A refit by `refit push` in a container; the checkpoint is there read-only."""
        return self.exec(container, "/opt/refit/bin/refit", "push", f"/checkpoints/v{version}.safetensors", "--version", str(version),
                         "--to", "127.0.0.1:7070")

    def status(self, container):
        with open(f"/proc/{self.pid(container)}/status", encoding="utf-8") as file:
            return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)

    def probe(self, container, kind):
        """Whether this probe of the manifest passes now."""
        probe = chart.container(self.spec, container)[kind]
        ports = {p["name"]: p["containerPort"] for p in chart.container(self.spec, container)["ports"]}
        port = probe.get("httpGet", probe.get("tcpSocket"))["port"]
        port = ports.get(port, port)
        if "httpGet" in probe:
            return 200 <= self.get(port, probe["httpGet"]["path"])[0] < 400

        def connect():
            with socket.socket() as attempt:
                attempt.settimeout(5)
                return attempt.connect_ex(("127.0.0.1", port)) == 0
        return self.inside(connect)

    def wait_probe(self, container, kind):
        wait_for(f"{kind} of {container}", lambda: self.probe(container, kind))

    def kill(self, container, number=signal.SIGKILL):
        """From the host: for podman it just died, so that the restart policy holds."""
        pid = self.pid(container)
        os.kill(pid, number)
        return pid

    def wait_restarted(self, container, old):
        return wait_for(f"{container} to be started again", lambda: self.pid(container) != old and self.pid(container))

    def stop(self):
        if self.inside:
            self.inside.stop()
        if self.playing:
            run("podman", "play", "kube", "--down", self.file, check=False)
        for name in self.volumes:
            run("podman", "volume", "rm", "--force", name, check=False)
