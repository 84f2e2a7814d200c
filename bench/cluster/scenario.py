# SPDX-License-Identifier: Apache-2.0
"""Scenario files: what they may say, checked before anything is started.

{
  "title": "TP4 to DP4",
  "rate": "400mbit", "rates": {"r0": "800mbit"},          every link, and those that differ
  "trainer": {"layout": {...}, "nodes": ["t0", "t1"]},    rank i runs on nodes[i]; equal names share a node
  "engine": {"layout": {...}},                            or "layout": "file.json", beside the scenario
  "replicas": {"r0": "r0", "r1": "r1"},                   replica to node; all its ranks run there
  "refitd": ["--streams", "2"],                           options of every refitd
  "strategies": ["relay"], "goal": 1.05,                  goal: of time to bound
  "peers": ["chain", "direct"],                           what --peer gloo runs
  "fault": {"kind": "kill", "replica": "r3", "after": 0.3, "goal": 1.10},
  "requests": {"replica": "r0", "hz": 200, "bytes": 4194304, "engine_cpus": "0", "other_cpus": "1", "seconds": 10,
               "refitd": ["--nice", "10"], "joiner": "r2", "goal": 1.25, "acquire_goal_ns": 1000}
}
"""
import json
import os
import re
from dataclasses import dataclass, field

import documents
import netns

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scenarios")
FAULTS = ("kill", "stop", "cut")
PEERS = ("chain", "direct")
MEMBERS = {
    "": {"title", "note", "rate", "rates", "trainer", "engine", "replicas", "refitd", "strategies", "goal", "peers", "fault", "requests"},
    "trainer": {"layout", "nodes"}, "engine": {"layout"}, "fault": {"kind", "replica", "after", "goal"},
    "requests": {"replica", "hz", "bytes", "engine_cpus", "other_cpus", "seconds", "refitd", "joiner", "goal", "acquire_goal_ns"},
}


class ScenarioError(ValueError):
    """Names the file, the member, what was expected and what was found."""


@dataclass
class Scenario:
    name: str
    path: str
    title: str
    trainer_layout: dict
    trainer_nodes: list
    engine_layout: dict
    replicas: dict              # name: node
    links: dict                 # node: rate
    strategies: list
    peers: list
    goal: float
    refitd: list = field(default_factory=list)
    fault: dict = None
    requests: dict = None
    weights: int = field(default=0)

    @property
    def trainer_ranks(self):
        return self.trainer_layout["ranks"]

    @property
    def engine_ranks(self):
        return self.engine_layout["ranks"]

    def due(self):
        """What comes in over each replica's node's link: a node is a domain, and takes each byte once."""
        return {node: self.weights for node in self.replicas.values()}


class _Reader:
    def __init__(self, path):
        self.path = path
        self.name = os.path.basename(path).removesuffix(".json")

    def fail(self, text):
        raise ScenarioError(f"{self.path}: {text}")

    def load(self, path):
        try:
            with open(path) as file:
                return json.load(file)
        except OSError as error:
            self.fail(f"can't be read: {error.strerror}: {path}")
        except ValueError as error:
            self.fail(f"{path} is no JSON: {error}")

    def object(self, document, where, needed=()):
        if not isinstance(document, dict):
            self.fail(f"{where or 'the scenario'} must be an object, found {type(document).__name__}")
        for name in document:
            if name not in MEMBERS[where]:
                self.fail(f"unknown member \"{name}\"{' in ' + where if where else ''}; known: {', '.join(sorted(MEMBERS[where]))}")
        for name in needed:
            if name not in document:
                self.fail(f"\"{name}\" is missing{' in ' + where if where else ''}")
        return document

    def layout(self, value, where):
        if isinstance(value, str):
            value = self.load(os.path.join(os.path.dirname(self.path), value))
        if not isinstance(value, dict) or value.get("format") != "refit-layout/1":
            self.fail(f"{where}.layout must be a refit-layout/1 document, or the name of a file with one")
        try:
            documents.boxes(value)
        except (KeyError, TypeError, ValueError) as error:
            self.fail(f"{where}.layout: {error}")
        return value

    def names(self, value, where, allowed=None):
        if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
            self.fail(f"{where} must be a list of names that is not empty")
        for name in value:
            if allowed and name not in allowed:
                self.fail(f"{where}: \"{name}\" is not known; expected one of {', '.join(allowed)}")
        return value

    def number(self, value, where, low, high):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            self.fail(f"{where} must be a number from {low} to {high}, found {value!r}")
        return value

    def rate(self, value, where):
        try:
            netns.bits_per_second(value)
        except ValueError as error:
            self.fail(f"{where}: {error}")
        return value

    def links(self, document, nodes):
        rates = document.get("rates", {})
        if not isinstance(rates, dict):
            self.fail("rates must be an object: node to rate")
        for node in nodes:
            if not re.fullmatch(r"[a-z][a-z0-9]{0,7}", node) or node == "bridge":
                self.fail(f"node \"{node}\": expected a letter and at most 7 letters and digits, and not \"bridge\"")
        for node in rates:
            if node not in nodes:
                self.fail(f"rates: no rank or replica is on node \"{node}\"")
        default = self.rate(document["rate"], "rate")
        return {node: self.rate(rates.get(node, default), f"rates.{node}") for node in nodes}

    def replica(self, value, replicas, where):
        if value not in replicas:
            self.fail(f"{where}: there is no replica \"{value}\"; there are {', '.join(replicas)}")
        return value

    def fault(self, document, replicas):
        self.object(document, "fault", ("kind", "replica"))
        if document["kind"] not in FAULTS:
            self.fail(f"fault.kind: \"{document['kind']}\" is not known; expected one of {', '.join(FAULTS)}")
        self.replica(document["replica"], replicas, "fault.replica")
        return {"after": 0.3, "goal": 1.10, **document,
                "after": self.number(document.get("after", 0.3), "fault.after", 0, 1)}

    def requests(self, document, replicas):
        self.object(document, "requests", ("replica",))
        whole = {"joiner": None, "hz": 200, "bytes": 4 << 20, "seconds": 10, "refitd": [], "goal": 1.25, "acquire_goal_ns": 1000,
                 "engine_cpus": None, "other_cpus": None, **document}
        self.replica(whole["replica"], replicas, "requests.replica")
        if whole["joiner"] is not None:
            self.replica(whole["joiner"], replicas, "requests.joiner")
        for member in ("engine_cpus", "other_cpus"):
            if whole[member] is not None and not re.fullmatch(r"[0-9]+(,[0-9]+)*", str(whole[member])):
                self.fail(f"requests.{member} must be core numbers with commas between, such as \"0,1\"; found {whole[member]!r}")
        self.number(whole["hz"], "requests.hz", 1, 100000)
        self.number(whole["bytes"], "requests.bytes", 4096, 1 << 30)
        self.number(whole["seconds"], "requests.seconds", 0.1, 600)
        return whole

    def same_tensors(self, trainer, engine):
        ours, theirs = documents.tensors(trainer), documents.tensors(engine)
        for name in {**ours, **theirs}:
            if ours.get(name) != theirs.get(name):
                self.fail(f"tensor {name} is {ours.get(name, 'missing')} at the trainer and {theirs.get(name, 'missing')} at the engine")

    def read(self):
        document = self.object(self.load(self.path), "", ("title", "rate", "trainer", "engine", "replicas"))
        trainer = self.object(document["trainer"], "trainer", ("layout", "nodes"))
        engine = self.object(document["engine"], "engine", ("layout",))
        layouts = self.layout(trainer["layout"], "trainer"), self.layout(engine["layout"], "engine")
        nodes = self.names(trainer["nodes"], "trainer.nodes")
        if len(nodes) != layouts[0]["ranks"]:
            self.fail(f"trainer.nodes names {len(nodes)} nodes, and the layout has {layouts[0]['ranks']} ranks: one node for each rank")
        replicas = document["replicas"]
        if not isinstance(replicas, dict) or not replicas or not all(isinstance(node, str) for node in replicas.values()):
            self.fail("replicas must be an object that is not empty: replica to node")
        if set(nodes) & set(replicas.values()):
            both = min(set(nodes) & set(replicas.values()))
            self.fail(f"node {both} has a rank of the trainer and a replica: a node is one or the other")
        self.same_tensors(*layouts)
        return Scenario(
            name=self.name, path=self.path, title=document["title"], trainer_layout=layouts[0], trainer_nodes=nodes,
            engine_layout=layouts[1], replicas=replicas, links=self.links(document, list(dict.fromkeys([*nodes, *replicas.values()]))),
            strategies=self.names(document.get("strategies", ["relay"]), "strategies"),
            peers=self.names(document["peers"], "peers", PEERS) if "peers" in document else [],
            goal=self.number(document.get("goal", 1.05), "goal", 1, 100),
            refitd=self.names(document["refitd"], "refitd") if "refitd" in document else [],
            fault=self.fault(document["fault"], replicas) if "fault" in document else None,
            requests=self.requests(document["requests"], replicas) if "requests" in document else None,
            weights=documents.weights_bytes(layouts[0]))


def load(path):
    """A scenario from a file, or by its name in scenarios/."""
    if not os.path.exists(path) and os.path.exists(os.path.join(HERE, path + ".json")):
        path = os.path.join(HERE, path + ".json")
    return _Reader(path).read()


def names():
    """Of the scenarios that come with the tool, in the order they run."""
    return sorted(name.removesuffix(".json") for name in os.listdir(HERE) if name.endswith(".json") and not name.startswith("layout"))
