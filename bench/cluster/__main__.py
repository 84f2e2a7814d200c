# SPDX-License-Identifier: Apache-2.0
"""A cluster in a box: scenarios on network namespaces as nodes, measured against the least time their links allow."""
import argparse
import os
import signal
import sys

import latency
import netns
import programs
import report
import run
import scenario as scenarios
from peer_gloo import gloo, install

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def arguments():
    parser = argparse.ArgumentParser(prog="python3 bench/cluster", description=__doc__ + " Needs root.")
    parser.add_argument("scenario", nargs="*", help="files, names of bench/cluster/scenarios, or `all`; none: lists them")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"), help="build tree (build/release)")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each scenario (5)")
    parser.add_argument("--strategy", action="append", help="how bytes get to the replicas; several times: each; else the scenario's")
    parser.add_argument("--refitd", action="append", default=[], metavar="OPTION", help="one more option of every refitd, such as "
                        "--refitd=--streams=4")
    parser.add_argument("--peer", choices=["gloo"], action="append", help="the scenario through torch.distributed instead")
    parser.add_argument("--install-peer", action="store_true", help="first put CPU torch into a virtual environment in the build tree")
    parser.add_argument("--update", action="store_true", help="write the results into docs/performance.md and docs/cluster.svg")
    return parser.parse_args()


def measurements(scenario, options):
    """(method, function) of what is to be measured: with `all`, Refit and its peers in turn."""
    count = options.runs
    if not options.peer or options.everything:
        kind = run.fault if scenario.fault else latency.requests if scenario.requests else run.refit
        for strategy in options.strategy or scenario.strategies:
            yield f"refit {strategy}", lambda say, s=strategy: kind(scenario, options.build, s, count, say)
    if options.peer:
        for mode in scenario.peers:
            yield f"gloo {mode}", lambda say, m=mode: gloo(scenario, m, count, options.build, say)


def command_of(scenario, method, options):
    program, how = method.split(" ", 1)
    which = " ".join([f"--strategy {how}", *(f"--refitd={o}" for o in options.refitd)]) if program == "refit" else "--peer gloo"
    return f"python3 bench/cluster {scenario.name} {which} --runs {options.runs}"


def say(line):
    print(line, flush=True)


def run_all(options):
    failed, results = 0, []
    for name in options.scenario:
        scenario = scenarios.load(name)
        scenario.refitd += options.refitd
        for method, measure in measurements(scenario, options):
            say(f"\n== {scenario.name}: {scenario.title}; {method}")
            try:
                found = measure(say)
            except (programs.Failed, AssertionError, OSError, netns.BoxError) as error:
                say(f"FAILED: {error}")
                failed += 1
                continue
            found.update(title=scenario.title, command=command_of(scenario, method, options))
            results.append(found)
            say(report.summary(found))
    if options.update:
        report.update(ROOT, results)
    return 1 if failed else 0


def on_signal(number, _):
    raise SystemExit(128 + number)


def main():
    options = arguments()
    if not options.scenario:
        for name in scenarios.names():
            print(f"{name:<20} {scenarios.load(name).title}")
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    options.everything = options.scenario == ["all"]
    if options.everything:
        options.scenario = scenarios.names()
        options.peer = ["gloo"]
    try:
        for name in options.scenario:
            scenarios.load(name)
    except scenarios.ScenarioError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 2
    why = netns.missing()
    if why:
        print(f"cluster: {why}", file=sys.stderr)
        return 2
    if options.install_peer:
        install(options.build)
    return run_all(options)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
