# SPDX-License-Identifier: Apache-2.0
"""The least time a topology allows, and how it comes about. Pure arithmetic: bytes and bytes per second in, seconds out.

Whatever a program does, on links of goodput g (payload per second of one socket, measured on the link itself):

1. each byte of the weights W leaves the trainer at least once:           T >= W / (sum of g over the trainer's nodes)
2. a byte that one node of the trainer alone holds leaves over its link:  T >= max over nodes (bytes only there / g)
3. what a domain wants comes in over its link, once:                      T >= max over domains (bytes due / g)
4. all that comes in somewhere went out somewhere, at trainer or replica: T >= sum of due / sum of g over all nodes
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    text: str
    seconds: float


@dataclass(frozen=True)
class Bound:
    terms: tuple

    @property
    def seconds(self):
        return max(term.seconds for term in self.terms)

    def lines(self):
        deciding = max(self.terms, key=lambda term: term.seconds)
        return [f"T >= {term.text} = {term.seconds:.3f} s{'   <- decides' if term is deciding else ''}" for term in self.terms]


def _mb(count):
    return f"{count / 1e6:.1f} MB"


def refit(weights, alone, due, goodput):
    """`alone`: trainer node to bytes only it holds; `due`: domain's node to bytes it wants; `goodput`: node to bytes per second."""
    if weights <= 0 or not alone or not due:
        raise ValueError("a bound needs weights, a trainer's node and a replica's")
    for node in [*alone, *due]:
        if goodput[node] <= 0:
            raise ValueError(f"the link of {node} carries nothing")
    egress = sum(goodput[node] for node in alone)
    source = max(alone, key=lambda node: alone[node] / goodput[node])
    sink = max(due, key=lambda node: due[node] / goodput[node])
    total, out = sum(due.values()), sum(goodput[node] for node in {*alone, *due})
    return Bound((
        Term(f"weights {_mb(weights)} / egress of the trainer {_mb(egress)}/s", weights / egress),
        Term(f"{_mb(alone[source])} that only {source} holds / its link {_mb(goodput[source])}/s", alone[source] / goodput[source]),
        Term(f"{_mb(due[sink])} due at {sink} / its link {_mb(goodput[sink])}/s", due[sink] / goodput[sink]),
        Term(f"{_mb(total)} due in all / egress of all nodes {_mb(out)}/s", total / out)))


def gather_and_broadcast(weights, held_by_first, first, trainers, due, goodput):
    """The same for a gather of the whole at node `first`, and then a broadcast in a chain without any start-up: what two steps, one after
    the other, can't beat. The receivers take the whole, whatever they want of it."""
    missing = weights - held_by_first
    others = [goodput[node] for node in trainers if node != first]
    gather = max(missing / goodput[first], missing / sum(others)) if missing > 0 else 0.0
    slowest = min(goodput[node] for node in [first, *due])
    return Bound((Term(f"gather {_mb(missing)} at {first}, {gather:.3f} s, then {_mb(weights)} along a chain of links of {_mb(slowest)}/s",
                       gather + weights / slowest),))
