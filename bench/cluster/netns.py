# SPDX-License-Identifier: Apache-2.0
"""A cluster in a box: network namespaces as nodes, on a bridge in a namespace of its own.

Each node has one link, a veth pair to the bridge, limited by a token bucket at both ends: what the node sends at its own end,
what it is sent at the bridge's. Names carry a random tag, so several boxes live side by side. A box that was killed leaves
namespaces behind and a lock file that nobody holds: the next box removes them.
"""
import ctypes
import fcntl
import glob
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import uuid

LOCKS = "/run/refit-cluster"
PREFIX = "refit-box"
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


class BoxError(Exception):
    """Says what is missing or what went wrong, for people."""


def _ip(*arguments, batch=None):
    done = subprocess.run(["ip", *arguments], input=batch, capture_output=True, text=True)
    if done.returncode != 0:
        raise BoxError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _tc(namespace, lines):
    done = subprocess.run(["tc", "-n", namespace, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True)
    if done.returncode != 0:
        raise BoxError(f"tc in {namespace}: {done.stderr.strip()}")


def inside(namespace, function):
    """What `function` returns on a thread whose network is that of the namespace. Sockets made there stay there."""
    result = {}

    def run():
        try:
            with open(f"/run/netns/{namespace}") as file:
                if LIBC.setns(file.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"setns {namespace}")
            result["value"] = function()
        except BaseException as error:  # handed to the caller
            result["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if "error" in result:
        raise result["error"]
    return result["value"]


def bits_per_second(rate):
    """'400mbit' in bits per second; ValueError when it is none."""
    found = re.fullmatch(r"([0-9]+)(kbit|mbit|gbit)", rate) if isinstance(rate, str) else None
    if not found or int(found[1]) == 0:
        raise ValueError(f"{rate!r} is no rate: expected a number and kbit, mbit or gbit, such as \"400mbit\"")
    return int(found[1]) * {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}[found[2]]


def missing():
    """Why no box can be made here, or None. Tries it."""
    if os.geteuid() != 0:
        return "needs root: network namespaces and traffic control belong to it"
    for program in ("ip", "tc", "setpriv"):
        if not shutil.which(program):
            return f"needs the program `{program}` (packages iproute2 and util-linux)"
    try:
        with Box({"a": "100mbit"}):
            return None
    except (BoxError, OSError) as error:
        return f"this kernel or container does not allow it: {error}"


def sweep():
    """Removes what killed boxes left: those whose lock nobody holds."""
    for path in glob.glob(os.path.join(LOCKS, "*.lock")):
        with open(path) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            _remove(os.path.basename(path).removesuffix(".lock"))


def _remove(tag):
    for namespace in glob.glob(f"/run/netns/{PREFIX}-{tag}-*"):
        name = os.path.basename(namespace)
        for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    for path in glob.glob(os.path.join(tempfile.gettempdir(), f"{PREFIX}.{tag}.*")):
        shutil.rmtree(path, ignore_errors=True)
    for path in glob.glob(os.path.join(LOCKS, tag + ".lock")):
        os.unlink(path)


class Box:
    """`links`: node to rate. A context manager; `scratch` is a directory that goes with it."""

    BURST, LATENCY, MTU = "256kb", "200ms", 9000

    def __init__(self, links):
        self.links = dict(links)
        self.nodes = list(self.links)
        self.tag = secrets.token_hex(3)

    def __enter__(self):
        os.makedirs(LOCKS, exist_ok=True)
        sweep()
        self.lock = open(os.path.join(LOCKS, self.tag + ".lock"), "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.scratch = tempfile.mkdtemp(prefix=f"{PREFIX}.{self.tag}.")
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        _remove(self.tag)
        self.lock.close()

    def namespace(self, node):
        return f"{PREFIX}-{self.tag}-{node}"

    def address(self, node):
        return f"10.77.0.{self.nodes.index(node) + 1}"

    def _make(self):
        bridge = self.namespace("bridge")
        _ip("netns", "add", bridge)
        for node in self.nodes:
            _ip("netns", "add", self.namespace(node))
        lines = [f"link add bridge mtu {self.MTU} type bridge", "link set bridge addrgenmode none up"]
        for number, node in enumerate(self.nodes):
            lines += [f"link add l{number} mtu {self.MTU} type veth peer name eth0 mtu {self.MTU} netns {self.namespace(node)}",
                      f"link set l{number} addrgenmode none master bridge up"]
        _ip("-n", bridge, "-batch", "-", batch="\n".join(lines))
        _tc(bridge, [self._limit(f"l{number}", node) for number, node in enumerate(self.nodes)])
        for node in self.nodes:
            _ip("-n", self.namespace(node), "-batch", "-",
                batch=f"link set lo up\naddr add {self.address(node)}/24 dev eth0\nlink set eth0 addrgenmode none up")
            _tc(self.namespace(node), [self._limit("eth0", node)])
            with open(os.path.join(self.scratch, node + ".boot_id"), "w") as file:
                file.write(f"{uuid.uuid4()}\n")

    def _limit(self, device, node):
        return f"qdisc add dev {device} root tbf rate {self.links[node]} burst {self.BURST} latency {self.LATENCY}"

    def command(self, node, command, cpus=None):
        """The command line that runs `command` on the node: in its network, with a boot id of its own, so that the node is a host to
        those who look, and so short-lived that it does not outlive this process."""
        boot_id = os.path.join(self.scratch, node + ".boot_id")
        pinned = ["taskset", "-c", cpus] if cpus else []
        return ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self.namespace(node), "sh", "-c",
                f"mount --bind {boot_id} /proc/sys/kernel/random/boot_id && exec \"$@\"", "sh", *pinned, *command]

    def socket(self, node):
        return inside(self.namespace(node), socket.socket)

    def connect(self, node, port, timeout):
        """A connection to the node that starts on the node itself, so that it takes nothing of its link."""
        connection = self.socket(node)
        try:
            connection.settimeout(timeout)
            connection.connect((self.address(node), port))
            return connection
        except OSError:
            connection.close()
            raise

    def counters(self):
        """What the kernel counted on each link: node to (bytes it sent, bytes it was sent)."""
        def read():
            with open("/proc/thread-self/net/dev") as file:
                return file.read()

        found = {}
        for line in inside(self.namespace("bridge"), read).splitlines()[2:]:
            name, fields = line.split(":")
            if name.strip().startswith("l") and name.strip()[1:].isdigit():
                fields = fields.split()
                found[self.nodes[int(name.strip()[1:])]] = (int(fields[0]), int(fields[8]))
        return found

    def cut(self, node, mended=False):
        """Takes the node's link down, or up again."""
        number = self.nodes.index(node)
        _ip("-n", self.namespace("bridge"), "link", "set", f"l{number}", "up" if mended else "down")
