# SPDX-License-Identifier: Apache-2.0
"""One process of the gloo peer (peer_gloo.py): a rank of the trainer, or a replica with all its ranks.

  gloo_worker.py PLAN RANK       ranks of the trainer come first, then the replicas

Told on standard input "fill V" (-> "filled V"), "go V" (-> "done V BEGIN END", by the monotonic clock), "check V" (-> "checked V" or
"torn ..."). Memory is allocated and touched before anything is timed.

chain: the trainer's first rank gathers the whole and sends it along a chain of the replicas in buckets of 1 MiB, each of which is passed on
while the next comes in. direct: each rank of the trainer sends each rank of a replica what both hold, box by box.
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist

import documents

BUCKET = 1 << 20
WINDOW = 8  # buckets that may come in beside the one that is passed on
DTYPE = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def pattern(name, size, shape, version):
    seed = (sum(name.encode()) * 7919 + version * 104729) & 0x7FFF
    count = documents.box_volume([(0, extent) for extent in shape])
    return torch.arange(count, dtype=torch.int32).mul_(31).add_(seed).to(DTYPE[size]).view(shape)


def cut(tensor, box):
    for dim, (start, extent) in enumerate(box):
        tensor = tensor.narrow(dim, start, extent)
    return tensor


def inside(box, outer):
    """The box in coordinates of the one that holds it."""
    return tuple((start - begin, extent) for (start, extent), (begin, _) in zip(box, outer))


class Worker:
    def __init__(self, plan, rank):
        self.rank, self.trainers = rank, plan["trainer"]["ranks"]
        self.world = self.trainers + plan["replicas"]
        self.tensors = documents.tensors(plan["trainer"])
        self.source = documents.boxes(plan["trainer"])
        self.wanted = documents.boxes(plan["engine"])
        self.engine_ranks = plan["engine"]["ranks"]
        self.is_trainer = rank < self.trainers
        self.local = {}
        if self.is_trainer:
            self.local = {name: torch.zeros([extent for _, extent in held[rank]], dtype=DTYPE[self.tensors[name][0]])
                          for name, held in self.source.items() if rank in held}

    def fill(self, version):
        if self.is_trainer:
            for name, memory in self.local.items():
                memory.copy_(cut(pattern(name, *self.tensors[name], version), self.source[name][self.rank]))


class Chain(Worker):
    def __init__(self, plan, rank):
        super().__init__(plan, rank)
        self.views, total = {}, 0
        for name, (size, shape) in self.tensors.items():
            total += size * documents.box_volume([(0, extent) for extent in shape])
        self.whole = torch.zeros(total, dtype=torch.uint8) if rank == 0 or not self.is_trainer else None
        if self.whole is not None:
            self._name_parts()
        self.gathered = list(self._gathered())

    def _name_parts(self):
        at = 0
        for name, (size, shape) in self.tensors.items():
            count = size * documents.box_volume([(0, extent) for extent in shape])
            self.views[name] = self.whole[at:at + count].view(DTYPE[size]).view(shape)
            at += count

    def _gathered(self):
        """(tag, tensor, box, sender) of each part that the first rank lacks, once."""
        tag = 0
        for name, held in self.source.items():
            seen = {held.get(0)}
            for rank, box in sorted(held.items()):
                if box not in seen:
                    seen.add(box)
                    yield tag, name, box, rank
                    tag += 1

    def go(self):
        if self.is_trainer:
            self._gather()
        if self.whole is not None:
            self._pass_on()

    def _gather(self):
        if self.rank > 0:
            for work in [dist.isend(self.local[name], 0, tag=tag) for tag, name, _, rank in self.gathered if rank == self.rank]:
                work.wait()
            return
        coming = []
        for tag, name, box, rank in self.gathered:
            place = cut(self.views[name], box)
            landing = place if place.is_contiguous() else torch.empty(place.shape, dtype=place.dtype)
            coming.append((dist.irecv(landing, rank, tag=tag), landing, place))
        for name, memory in self.local.items():
            cut(self.views[name], self.source[name][0]).copy_(memory)
        for work, landing, place in coming:
            work.wait()
            if landing is not place:
                place.copy_(landing)

    def _pass_on(self):
        position = 0 if self.rank == 0 else self.rank - self.trainers + 1
        chain = [0, *range(self.trainers, self.world)]
        before = chain[position - 1] if position else None
        after = chain[position + 1] if position + 1 < len(chain) else None
        buckets = self.whole.split(BUCKET)
        coming = [dist.irecv(bucket, before, tag=tag) for tag, bucket in enumerate(buckets[:WINDOW])] if position else []
        going = []
        for tag, bucket in enumerate(buckets):
            if position:
                coming[tag].wait()
                if tag + WINDOW < len(buckets):
                    coming.append(dist.irecv(buckets[tag + WINDOW], before, tag=tag + WINDOW))
            if after is not None:
                going.append(dist.isend(bucket, after, tag=tag))
        for work in going:
            work.wait()

    def check(self, version):
        return self.is_trainer or all(torch.equal(self.views[name], pattern(name, *what, version)) for name, what in self.tensors.items())


class Direct(Worker):
    def __init__(self, plan, rank):
        super().__init__(plan, rank)
        self.places = {}
        if not self.is_trainer:
            self.places = {(name, e): torch.zeros([extent for _, extent in box], dtype=DTYPE[self.tensors[name][0]])
                           for name, held in self.wanted.items() for e, box in held.items()}
        self.messages = [m for m in self._messages() if rank in (m[0], m[1])]
        self.landings = [self._landing(m) if not self.is_trainer else None for m in self.messages]

    def _messages(self):
        """(sender, receiver, tag, tensor, engine rank, box), the same list everywhere. Of equal holders the one that owes least sends."""
        owed, tag = [0] * self.trainers, 0
        for name, wanted in self.wanted.items():
            for receiver in range(self.trainers, self.world):
                for e, box in sorted(wanted.items()):
                    for source_box in dict.fromkeys(self.source[name][rank] for rank in sorted(self.source[name])):
                        both = documents.intersect(source_box, box)
                        if both:
                            holders = [rank for rank, held in self.source[name].items() if held == source_box]
                            sender = min(holders, key=lambda rank: (owed[rank], rank))
                            owed[sender] += documents.box_volume(both) * self.tensors[name][0]
                            yield sender, receiver, tag, name, e, both
                            tag += 1

    def _landing(self, message):
        _, _, _, name, e, box = message
        place = cut(self.places[name, e], inside(box, self.wanted[name][e]))
        return place, place if place.is_contiguous() else torch.zeros(place.shape, dtype=place.dtype)

    def go(self):
        if self.is_trainer:
            self._send()
        else:
            self._receive()

    def _send(self):
        going = []
        for _, receiver, tag, name, _, box in self.messages:
            part = cut(self.local[name], inside(box, self.source[name][self.rank])).contiguous()
            going.append((dist.isend(part, receiver, tag=tag), part))
        for work, _ in going:
            work.wait()

    def _receive(self):
        coming = [dist.irecv(landing, message[0], tag=message[2]) for message, (_, landing) in zip(self.messages, self.landings)]
        for work, (place, landing) in zip(coming, self.landings):
            work.wait()
            if landing is not place:
                place.copy_(landing)

    def check(self, version):
        return all(torch.equal(memory, cut(pattern(name, *self.tensors[name], version), self.wanted[name][e]))
                   for (name, e), memory in self.places.items())


def obey(worker, line):
    word, version = line.split()
    if word == "fill":
        worker.fill(int(version))
        return f"filled {version}"
    if word == "check":
        return f"checked {version}" if worker.check(int(version)) else f"torn {version}"
    dist.barrier()
    begin = time.monotonic()
    worker.go()
    return f"done {version} {begin} {time.monotonic()}"


def main():
    torch.set_num_threads(1)
    with open(sys.argv[1]) as file:
        plan = json.load(file)
    rank = int(sys.argv[2])
    worker = {"chain": Chain, "direct": Direct}[plan["mode"]](plan, rank)
    os.environ["GLOO_SOCKET_IFNAME"] = plan["device"]
    dist.init_process_group("gloo", init_method=f"tcp://{plan['address']}", rank=rank, world_size=worker.world)
    dist.barrier()
    print("ready", flush=True)
    for line in sys.stdin:
        print(obey(worker, line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
