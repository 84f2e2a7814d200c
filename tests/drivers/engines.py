# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for vLLM and SGLang: their routes for changing weights, with the answers and failures that docs/drivers.md cites.

Weights lie in one place and are changed there, tensor by tensor, as engines do. A thread generates all the time and looks at
what it generates with; what must never be is a line in `violations`: a step with weights of two versions, a step with a cache
of other weights (unless it was to be kept), a resume with half-written weights.
"""
import glob
import hashlib
import json
import os
import struct
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def read_safetensors(directory):
    """Every tensor as (dtype, shape, bytes), as loaders read it: header, offsets without holes, aligned."""
    tensors = {}
    files = sorted(glob.glob(os.path.join(directory, "*.safetensors")))
    if not files:
        raise ValueError(f"Cannot find any model weights with `{directory}`")
    for path in files:
        with open(path, "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
            data = file.read()
        header.pop("__metadata__", None)
        at = 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            width = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1, "I64": 8}[entry["dtype"]]
            if begin != at or begin % width:
                raise ValueError(f"{name}: a hole or an unaligned tensor at {begin}")
            tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
            at = end
        if at != len(data):
            raise ValueError("bytes that no tensor has")
    return tensors


def digest(tensors):
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(name.encode() + repr(tensors[name][:2]).encode() + tensors[name][2])
    return whole.hexdigest()


class Refusal(Exception):
    def __init__(self, status, body):
        super().__init__(body)
        self.status, self.body = status, body


class Fault:
    """What happens at a step:

    "status"         an answer before anything was done
    "half"           a load that fails midway
    "late"           done, but answered with an error
    "other-version"  done, as something else
    "huge"           an answer of megabytes
    "drop"           the connection closes
    "hang"           no answer until the test lets go
    "after"          done when the test opens the gate
    "crash"          the engine is gone
    """

    def __init__(self, kind, status=500, times=1):
        self.kind, self.status, self.times = kind, status, times
        self.gate, self.done = threading.Event(), threading.Event()  # of "after"


class Engine:
    def __init__(self, base):
        self.base = base
        self.lock = threading.RLock()
        self.violations = []
        self.calls = []
        self.faults = {}
        self.let_go = threading.Event()
        self.generation = 0  # of the process
        self.server = None
        self.port = 0
        self.known = {digest(base): "base"}  # versions that are whole
        self.steps = []  # digests generated with, each once in a row
        self.boot()

    # --- life

    def boot(self):
        with self.lock:
            self.weights = dict(self.base)
            self.version = "default"
            self.paused = False
            self.session = None
            self.kept = False
            self.cache = digest(self.base)  # of the weights that the caches were computed with
            self.requests = 3  # in flight
            self.generation += 1
            engine = self

            class Handler(BaseHTTPRequestHandler):
                protocol_version = "HTTP/1.1"
                generation = self.generation

                def log_message(self, *_):
                    pass

                def do_GET(self):
                    engine.serve(self, None)

                def do_POST(self):
                    engine.serve(self, self.rfile.read(int(self.headers.get("Content-Length") or 0)))

            self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
            self.server.daemon_threads = True
            self.port = self.server.server_address[1]
            self.alive = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        threading.Thread(target=self.generate, args=(self.generation,), daemon=True).start()

    def crash(self):
        with self.lock:
            if not self.alive:
                return
            self.alive = False
            self.generation += 1
            self.let_go.set()
            server = self.server
        server.shutdown()
        server.server_close()

    def restart(self):
        self.crash()
        self.let_go = threading.Event()
        self.boot()

    def close(self):
        self.crash()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    # --- what it does

    def generate(self, generation):
        while True:
            with self.lock:
                if self.generation != generation:
                    return
                if not self.paused:
                    self.step()
            threading.Event().wait(0.002)

    def step(self):
        now = digest(self.weights)
        if now not in self.known:
            self.violations.append("a step with weights that are no version")
        elif self.cache != now and not self.kept:
            self.violations.append(f"a step with version {self.known[now]} and a cache of {self.known.get(self.cache)}")
        if not self.steps or self.steps[-1] != now:
            self.steps.append(now)

    def learn(self, name, tensors):
        """The test says which weights are whole versions."""
        with self.lock:
            self.known[digest(tensors)] = name

    def serves(self):
        with self.lock:
            return None if self.paused else self.known.get(digest(self.weights), "torn")

    def check_resume(self):
        now = digest(self.weights)
        if now not in self.known:
            self.violations.append("resumed with half-written weights")
        if self.session:
            self.violations.append("resumed in the middle of an update")

    def load_file(self, path, half):
        new = read_safetensors(path)
        if {n: t[:2] for n, t in new.items()} != {n: t[:2] for n, t in self.base.items()}:
            raise ValueError("the checkpoint's tensors are not the model's")
        for number, name in enumerate(sorted(new)):
            if half and number >= len(new) // 2:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            self.weights[name] = new[name]

    # --- HTTP

    def take_fault(self, step):
        with self.lock:
            fault = self.faults.get(step)
            if not fault:
                return None
            fault.times -= 1
            if fault.times <= 0:
                del self.faults[step]
            return fault

    def serve(self, request, body):
        url = urllib.parse.urlsplit(request.path)
        route = self.routes().get((request.command, url.path))
        if not route or request.generation != self.generation:
            return self.answer(request, 404, {"detail": "Not Found"})
        step, run = route
        fault = self.take_fault(step)
        query = {key: values[-1] for key, values in urllib.parse.parse_qs(url.query).items()}
        with self.lock:
            self.calls.append((url.path, query, json.loads(body) if body else None))
        if fault and fault.kind == "status":
            return self.answer(request, fault.status, {"detail": f"{step} failed"})
        if fault and fault.kind == "huge":
            return self.answer(request, 200, b" " * (4 << 20))
        if fault and fault.kind == "drop":
            request.close_connection = True
            return request.connection.close()
        if fault and fault.kind == "crash":
            threading.Thread(target=self.crash, daemon=True).start()
            self.let_go.wait(20)
            request.close_connection = True
            return request.connection.close()
        if fault and fault.kind == "after":
            fault.gate.wait(60)
        if fault and fault.kind == "hang":
            self.let_go.wait(60)
            request.close_connection = True
            return None
        try:
            with self.lock:
                answer = run(query, json.loads(body) if body else {}, fault and fault.kind == "half")
        except Refusal as refusal:
            return self.answer(request, refusal.status, refusal.body)
        except Exception as error:
            return self.answer(request, *self.failed(error))
        if fault and fault.kind == "after":
            fault.done.set()
        if fault and fault.kind == "other-version":
            self.version = "other"
        if fault and fault.kind == "late":
            return self.answer(request, fault.status, {"detail": "after it was done"})
        return self.answer(request, 200, answer)

    @staticmethod
    def answer(request, status, body):
        text = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            request.send_response(status)
            request.send_header("Content-Type", "application/json")
            request.send_header("Content-Length", str(len(text)))
            request.end_headers()
            request.wfile.write(text)
        except OSError:
            pass


class Vllm(Engine):
    """With VLLM_SERVER_DEV_MODE=1. `disk` is a weight transfer backend that takes a path."""
    kind = "vllm"

    def routes(self):
        return {
            ("GET", "/weight_info"): ("look", lambda q, b, h: {"weight_version": self.version}),
            ("GET", "/is_paused"): ("is-paused", lambda q, b, h: {"is_paused": self.paused}),
            ("POST", "/pause"): ("pause", self.pause),
            ("POST", "/collective_rpc"): ("load", self.collective_rpc),
            ("POST", "/update_weight_version"): ("finish", self.update_weight_version),
            ("POST", "/start_weight_update"): ("begin", self.start),
            ("POST", "/update_weights"): ("load", self.update),
            ("POST", "/finish_weight_update"): ("finish", self.finish),
            ("POST", "/reset_prefix_cache"): ("flush", self.reset_prefix_cache),
            ("POST", "/reset_mm_cache"): ("flush-mm", lambda q, b, h: None),
            ("POST", "/reset_encoder_cache"): ("flush-encoder", lambda q, b, h: None),
            ("POST", "/resume"): ("resume", self.resume),
        }

    @staticmethod
    def failed(error):
        return 500, {"error": {"message": str(error), "type": "InternalServerError"}}

    def pause(self, query, body, half):
        mode = query.get("mode", "abort")
        if mode not in ("abort", "wait", "keep"):
            raise Refusal(422, {"detail": "mode"})
        if mode == "abort":
            self.requests = 0
        self.paused = True
        return {"status": "paused"}

    def collective_rpc(self, query, body, half):
        if body.get("method") != "reload_weights":
            raise RuntimeError(f"no method {body.get('method')}")
        self.load_file(body["kwargs"]["weights_path"], half)
        self.kept = True
        return {"results": [None]}

    def update_weight_version(self, query, body, half):
        self.version = body["new_version"]
        return {"success": True, "new_version": self.version}

    def start(self, query, body, half):
        if self.session:
            raise RuntimeError("A shared-disk weight update is already active")
        self.session = "started"
        return {"message": "Weight update started"}

    def update(self, query, body, half):
        if self.session != "started":
            raise RuntimeError("start_weight_update must be called before loading a checkpoint")
        try:
            self.load_file(body["update_info"]["path"], half)
        except Exception:
            self.session = None
            raise
        self.session = "loaded"
        self.kept = True
        return {"message": "Weights updated"}

    def finish(self, query, body, half):
        if self.session != "loaded":
            self.session = None
            raise RuntimeError("No checkpoint was loaded during the shared-disk update session")
        self.session = None
        if body.get("weight_version") is not None:
            self.version = body["weight_version"]
        return {"message": "Weight update finished"}

    def reset_prefix_cache(self, query, body, half):
        if query.get("reset_running_requests") != "true" and self.requests:
            return {"success": False}
        self.cache = digest(self.weights)
        self.kept = False
        return {"success": True}

    def resume(self, query, body, half):
        self.check_resume()
        self.paused = False
        return {"status": "resumed"}


class Sglang(Engine):
    kind = "sglang"
    model_info = "/model_info"

    def boot(self):
        super().boot()
        self.mode = None

    def routes(self):
        return {
            ("GET", self.model_info): ("look", lambda q, b, h: {
                "model_path": "base", "weight_version": self.version, "preferred_sampling_params": {"temperature": 0.7}}),
            ("POST", "/pause_generation"): ("pause", self.pause),
            ("POST", "/update_weights_from_disk"): ("load", self.update),
            ("POST", "/flush_cache"): ("flush", self.flush),
            ("POST", "/continue_generation"): ("resume", self.resume),
        }

    @staticmethod
    def failed(error):
        return 400, {"success": False, "message": f"Failed to update weights: {error}.\nRolling back to original weights.",
                     "num_paused_requests": 0}

    def pause(self, query, body, half):
        self.mode = body.get("mode", "abort")
        if self.mode not in ("abort", "retract", "in_place"):
            raise Refusal(422, {"detail": "mode"})
        if self.mode == "abort":
            self.requests = 0
        self.paused = True
        return {"message": "Generation paused successfully.", "status": "ok"}

    def update(self, query, body, half):
        self.load_file(body["model_path"], half)  # the way back it speaks of reads the new path again: nothing is as it was
        self.kept = True
        if body.get("flush_cache", True):
            if self.mode == "in_place" and self.requests:
                threading.Thread(target=self.crash, daemon=True).start()  # the scheduler's assertion
                raise RuntimeError("Cache flush failed after updating weights")
            self.flush(None, None, None)
        if body.get("weight_version") is not None:
            self.version = body["weight_version"]
        return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

    def flush(self, query, body, half):
        if self.mode == "in_place" and self.requests:
            raise Refusal(400, b"Cache flushed.\nPlease check backend logs for more details.")
        self.cache = digest(self.weights)
        self.kept = False
        return None

    def resume(self, query, body, half):
        self.check_resume()
        self.paused = False
        return {"message": "Generation continued successfully.", "status": "ok"}


class OldSglang(Sglang):
    """With the older name of a route."""
    model_info = "/get_model_info"
