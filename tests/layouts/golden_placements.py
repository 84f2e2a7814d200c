#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes golden_placements.json: which rows of a tensor torch puts into each rank's memory.

Run once with torch 2.13 (CPU); the tests only read the result. "chunks" are torch.chunk's sizes. "fsdp_tp" are the
rows that fully_shard() keeps of a parameter that is already tensor-parallel, taken from the local tensors.
"""
import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore


def chunks(n, w):
    sizes = [len(c) for c in torch.chunk(torch.arange(n), w)]
    return sizes + [0] * (w - len(sizes))


class Holder(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight)


def local_rows(n, fsdp, tp, rank):
    """Rows and placements of an [n, 2] parameter on one rank of an fsdp x tp mesh, TP on dimension 0."""
    dist.init_process_group("fake", rank=rank, world_size=fsdp * tp, store=FakeStore())
    mesh = init_device_mesh("cpu", (fsdp, tp), mesh_dim_names=("fsdp", "tp"))
    full = torch.arange(n, dtype=torch.float32).unsqueeze(1).repeat(1, 2)
    sharded = distribute_tensor(full, mesh["tp"], [Shard(0)], src_data_rank=None)
    module = Holder(sharded)
    fully_shard(module, mesh=mesh["fsdp"])
    rows = module.weight.to_local()[:, 0].to(torch.int64).tolist()
    placements = [str(type(p).__name__) for p in module.weight.placements]
    dist.destroy_process_group()
    return rows, placements


def main():
    out = {"torch": torch.__version__.split("+")[0], "chunks": [], "fsdp_tp": []}
    for n in list(range(0, 20)) + [31, 64, 100, 129280]:
        for w in (1, 2, 3, 4, 5, 7, 8, 16):
            out["chunks"].append({"n": n, "parts": w, "sizes": chunks(n, w) if n else [0] * w})
    for n in (1, 2, 3, 5, 7, 8, 9, 10, 13, 16, 17, 23, 31):
        for fsdp, tp in ((4, 2), (2, 4), (3, 2), (2, 3), (4, 4), (8, 2)):
            ranks = []
            for rank in range(fsdp * tp):
                rows, placements = local_rows(n, fsdp, tp, rank)
                ranks.append([rows[0] if rows else 0, len(rows)])
                assert not rows or rows == list(range(rows[0], rows[0] + len(rows))), (n, fsdp, tp, rank, rows)
            assert placements == ["_StridedShard", "Shard"], placements
            out["fsdp_tp"].append({"n": n, "fsdp": fsdp, "tp": tp, "rows": ranks})
    json.dump(out, sys.stdout, separators=(",", ":"), sort_keys=True)
    print()


if __name__ == "__main__":
    main()
