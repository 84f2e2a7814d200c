#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What refitd and a sender rank hold beyond slots and weights, with the layout documents of DeepSeek-V3.

The documents have that model's structure: 61 layers, 256 experts in 58 of them, 44,788 tensors; served by 32 tensor-parallel ranks
of one replica (1.4 million boxes), sent by expert-parallel ranks. Widths are divided by 64 so that slots and weights fit a small machine: what is
measured depends on the number of tensors, boxes and ranks, not on their bytes. Peak anonymous memory is read from
/proc/PID/smaps_rollup and /proc/PID/status while three refits run; slots and weights are shared mappings and not counted.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "system"))

LAYERS, DENSE, EXPERTS, HEADS = 61, 3, 256, 128
HIDDEN, FFN, EXPERT_FFN, VOCAB = 7168 // 64, 18432 // 64, 2048 // 64, 129280 // 8
Q_RANK, KV_RANK, QK_HEAD, V_HEAD = 1536 // 64, 512 // 64, 192 // 8, 128 // 8


def entries(place, experts, dense_range, moe_range, all_range):
    """`place(kind)` gives mesh, placements and so on for a kind of cut; ranges are the `for` members."""
    def one(name, shape, kind, **loops):
        entry = {"tensor": name, "dtype": "BF16", "shape": shape, **place(kind)}
        if loops:
            entry["for"] = loops
        return entry

    layer, attention = "model.layers.{l}.", "model.layers.{l}.self_attn."
    return [
        one("model.embed_tokens.weight", [VOCAB, HIDDEN], "rows"), one("lm_head.weight", [VOCAB, HIDDEN], "rows"),
        one("model.norm.weight", [HIDDEN], "whole"),
        *[one(layer + n, [HIDDEN], "whole", l=all_range) for n in ("input_layernorm.weight", "post_attention_layernorm.weight")],
        one(attention + "q_a_proj.weight", [Q_RANK, HIDDEN], "whole", l=all_range),
        one(attention + "q_a_layernorm.weight", [Q_RANK], "whole", l=all_range),
        one(attention + "q_b_proj.weight", [HEADS * QK_HEAD, Q_RANK], "rows", l=all_range),
        one(attention + "kv_a_proj_with_mqa.weight", [KV_RANK + 1, HIDDEN], "whole", l=all_range),
        one(attention + "kv_a_layernorm.weight", [KV_RANK], "whole", l=all_range),
        one(attention + "kv_b_proj.weight", [HEADS * (QK_HEAD + V_HEAD), KV_RANK], "rows", l=all_range),
        one(attention + "o_proj.weight", [HIDDEN, HEADS * V_HEAD], "columns", l=all_range),
        *[one(layer + f"mlp.{n}_proj.weight", [FFN, HIDDEN], "rows", l=dense_range) for n in ("gate", "up")],
        one(layer + "mlp.down_proj.weight", [HIDDEN, FFN], "columns", l=dense_range),
        one(layer + "mlp.gate.weight", [EXPERTS, HIDDEN], "whole", l=moe_range),
        one(layer + "mlp.gate.e_score_correction_bias", [EXPERTS], "whole", l=moe_range),
        *[one(layer + f"mlp.shared_experts.{n}_proj.weight", [EXPERT_FFN, HIDDEN], "rows", l=moe_range) for n in ("gate", "up")],
        one(layer + "mlp.shared_experts.down_proj.weight", [HIDDEN, EXPERT_FFN], "columns", l=moe_range),
        *[one(layer + f"mlp.experts.{{e}}.{n}_proj.weight", [EXPERT_FFN, HIDDEN], "expert rows", l=moe_range, e=experts)
          for n in ("gate", "up")],
        one(layer + "mlp.experts.{e}.down_proj.weight", [HIDDEN, EXPERT_FFN], "expert columns", l=moe_range, e=experts),
    ]


def source(ranks):
    """Expert-parallel: each rank holds its experts whole, everything else is replicated."""
    document = {"format": "refit-layout/1", "ranks": ranks, "meshes": {"m": {"axes": ["ep"], "shape": [ranks]}}}
    document["entries"] = entries(lambda kind: {"mesh": "m", "placements": ["Replicate"]},
                                  {"range": [0, EXPERTS], "axis": "ep"}, [0, DENSE], [DENSE, LAYERS], [0, LAYERS])
    return document


def destination(ranks):
    placements = {"rows": "Shard(0)", "columns": "Shard(1)", "whole": "Replicate", "expert rows": "Shard(0)",
                  "expert columns": "Shard(1)"}
    document = {"format": "refit-layout/1", "ranks": ranks, "meshes": {"m": {"axes": ["tp"], "shape": [ranks]}}}
    document["entries"] = entries(lambda kind: {"mesh": "m", "placements": [placements[kind]]}, [0, EXPERTS], [0, DENSE],
                                  [DENSE, LAYERS], [0, LAYERS])
    return document


def anonymous_bytes(pid):
    try:
        with open(f"/proc/{pid}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))
    except (OSError, StopIteration):
        return 0


class Peaks(threading.Thread):
    def __init__(self, pids):
        super().__init__(daemon=True)
        self.peak = dict.fromkeys(pids, 0)
        self.ending = threading.Event()

    def run(self):
        while not self.ending.wait(0.005):
            for pid in self.peak:
                self.peak[pid] = max(self.peak[pid], anonymous_bytes(pid))


def publisher_path(build):
    """The release build has no tests, and a build for sanitizers no benches."""
    paths = [os.path.join(build, *parts) for parts in (("bench", "bench_publisher"), ("tests", "system", "publisher"))]
    return next((path for path in paths if os.path.exists(path)), paths[0])


def measure(build, scratch, sources, ranks, versions):
    """Refits a replica of `ranks` ranks, without engines; the bytes each refit needed, and the peak of refitd and of each sender rank."""
    from harness import free_port
    paths = {}
    for name, document in (("source", source(sources)), ("destination", destination(ranks))):
        paths[name] = os.path.join(scratch, name + ".json")
        with open(paths[name], "w") as file:
            json.dump(document, file)
    ports = os.path.join(scratch, "ports")
    refitd = subprocess.Popen([os.path.join(build, "sidecar", "refitd"), "--socket", os.path.join(scratch, "s"), "--ranks",
                               str(ranks), "--layout", paths["destination"], "--control", "127.0.0.1:0", "--admin",
                               "127.0.0.1:0", "--data", "127.0.0.1:0", "--ports-file", ports, "--log-level", "error"])
    publishers = []
    try:
        while not os.path.exists(ports) and refitd.poll() is None:
            time.sleep(0.01)
        with open(ports) as file:
            url = f"http://127.0.0.1:{json.load(file)['control']}"
        lead = f"127.0.0.1:{free_port()}"
        publishers = [subprocess.Popen([publisher_path(build), paths["source"], str(rank),
                                        str(sources), lead, ",".join(map(str, versions)), "deadline=120000",
                                        *([url] if rank == 0 else [])], stdout=subprocess.PIPE, text=True)
                      for rank in range(sources)]
        peaks = Peaks([refitd.pid, *[p.pid for p in publishers]])
        peaks.start()
        lines = publishers[0].communicate(timeout=300)[0].splitlines()
        for publisher in publishers[1:]:
            publisher.communicate(timeout=60)
        peaks.ending.set()
        peaks.join()
        if not lines or not all(line.startswith(("ok", "replica", "fleet")) for line in lines):
            raise RuntimeError(f"the refits failed: {lines}")
        return int(lines[0].split(" ")[3]), list(peaks.peak.values())
    finally:
        for process in [*publishers, refitd]:
            if process.poll() is None:
                process.terminate()
            process.wait()
            if process.stdout:
                process.stdout.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--sources", type=int, default=4, help="trainer ranks (4)")
    parser.add_argument("--ranks", type=int, default=32, help="serving ranks of the replica (32)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="refit-memory.") as scratch:
        needed, (refitd, *senders) = measure(options.build, scratch, options.sources, options.ranks, (1, 2, 3))
    print(f"DeepSeek-V3's documents, {options.sources} sources to TP{options.ranks}, widths / 64, three refits of "
          f"{needed / 1e6:.0f} MB each\n")
    print("| process | peak anonymous memory |\n|---|---|")
    print(f"| refitd | {refitd / 2**20:.1f} MiB |")
    for rank, peak in enumerate(senders):
        print(f"| sender rank {rank}{' (leads)' if rank == 0 else ''} | {peak / 2**20:.1f} MiB |")


if __name__ == "__main__":
    main()
