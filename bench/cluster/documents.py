# SPDX-License-Identifier: Apache-2.0
"""Layout documents (refit-layout/1) as a measurement needs them: which bytes there are, and which rank holds which box.

Reads what the scenarios use: entries on meshes with Shard and Replicate, families whose index a mesh axis may cut, and
pieces. Written apart from the library's own reader, so that the two can be held against each other.
"""
import itertools
import re

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}


class Unreadable(ValueError):
    """The document uses what this reader does not know."""


def _chunk(extent, parts, number):
    """(start, length), as torch.chunk cuts."""
    size = -(-extent // parts)
    start = min(extent, size * number)
    return start, min(size, extent - start)


def _counted(extent, counts, number):
    start = sum(counts[:number])
    return start, min(counts[number], extent - start)


def _members(document):
    """(name pattern, loops, dtype, shape, mesh name, placements) of each tensor or family."""
    for entry in document["entries"]:
        if "mesh" not in entry or any(key in entry for key in ("order", "groups", "rows", "regions")):
            raise Unreadable(f"entry {entry.get('tensor', entry.get('buffer'))}: only entries on a mesh, without order, groups and rows")
        for piece in entry.get("pieces", [entry]):
            yield piece["tensor"], entry.get("for", {}), entry["dtype"], piece["shape"], entry["mesh"], piece.get("placements")


def _range(loop):
    return loop if isinstance(loop, list) else loop["range"]


def tensors(document):
    """{name: (dtype bytes, shape)}, in document order."""
    found = {}
    for pattern, loops, dtype, shape, _, _ in _members(document):
        for values in itertools.product(*(range(*_range(loop)) for loop in loops.values())):
            found[pattern.format(**dict(zip(loops, values)))] = (BYTES[dtype], tuple(shape))
    return found


def weights_bytes(document):
    return sum(size * _volume(shape) for size, shape in tensors(document).values())


def _volume(shape):
    total = 1
    for extent in shape:
        total *= extent
    return total


def _coordinates(mesh):
    """rank: {axis: coordinate}, and {axis: size}."""
    ranks = mesh.get("ranks") or list(range(_volume(mesh["shape"])))
    places = itertools.product(*(range(size) for size in mesh["shape"]))
    return ({rank: dict(zip(mesh["axes"], place)) for rank, place in zip(ranks, places)}, dict(zip(mesh["axes"], mesh["shape"])))


def _indices(loops, place, sizes):
    """The values of each index that this rank has."""
    for name, loop in loops.items():
        first, end = _range(loop)
        if isinstance(loop, dict) and "axis" in loop:
            if "lists" in loop:
                raise Unreadable(f"index {name}: lists are not known here")
            axis = loop["axis"]
            start, length = (_counted(end - first, loop["counts"], place[axis]) if "counts" in loop
                             else _chunk(end - first, sizes[axis], place[axis]))
            yield range(first + start, first + start + length)
        else:
            yield range(first, end)


def _box(shape, placements, axes, place, sizes):
    """((start, extent), ...) of the rank's part, cut from left to right."""
    box = [(0, extent) for extent in shape]
    for axis, placement in zip(axes, placements or []):
        cut = re.fullmatch(r"Shard\((\d)\)", placement)
        if not cut and placement != "Replicate":
            raise Unreadable(f"placement {placement}: only Shard(d) and Replicate")
        if cut:
            dim = int(cut[1])
            start, length = _chunk(box[dim][1], sizes[axis], place[axis])
            box[dim] = (box[dim][0] + start, length)
    return tuple(box)


def boxes(document):
    """{tensor: {rank: box}}; a rank without a part of a tensor is left out."""
    found = {}
    for pattern, loops, _, shape, mesh, placements in _members(document):
        coordinates, sizes = _coordinates(document["meshes"][mesh])
        for rank, place in coordinates.items():
            box = _box(shape, placements, document["meshes"][mesh]["axes"], place, sizes)
            if not all(extent for _, extent in box):
                continue
            for values in itertools.product(*_indices(loops, place, sizes)):
                found.setdefault(pattern.format(**dict(zip(loops, values))), {})[rank] = box
    return found


def box_volume(box):
    return _volume([extent for _, extent in box])


def intersect(a, b):
    """The box in both, or None."""
    both = tuple((max(s, t), min(s + e, t + f) - max(s, t)) for (s, e), (t, f) in zip(a, b))
    return both if all(extent > 0 for _, extent in both) else None


def exclusive_bytes(document, nodes):
    """Bytes that the ranks of one node alone hold: {node: bytes}; nodes[rank] is where the rank is. Equal boxes are copies."""
    alone = dict.fromkeys(nodes, 0)
    sizes = tensors(document)
    for name, held in boxes(document).items():
        where = {}
        for rank, box in held.items():
            where.setdefault(box, set()).add(nodes[rank])
        for box, holders in where.items():
            if len(holders) == 1:
                alone[next(iter(holders))] += box_volume(box) * sizes[name][0]
    return alone


def held_bytes(document, nodes):
    """Bytes of the weights that each node holds, copies within the node once: {node: bytes}."""
    held = dict.fromkeys(nodes, 0)
    sizes = tensors(document)
    for name, ranks in boxes(document).items():
        for node, box in {(nodes[rank], box) for rank, box in ranks.items()}:
            held[node] += box_volume(box) * sizes[name][0]
    return held
