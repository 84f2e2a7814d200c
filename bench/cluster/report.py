# SPDX-License-Identifier: Apache-2.0
"""Results as text, as the section of docs/performance.md, and as a chart. Results are kept by scenario and method, so that a part
of them can be measured anew."""
import json
import os
import platform
import time

import chart

PAGE, CHART = os.path.join("docs", "performance.md"), os.path.join("docs", "cluster.svg")
RESULTS = os.path.join("bench", "cluster", "results.json")
BEGIN, END = "<!-- cluster: begin -->", "<!-- cluster: end -->"


def kind_of(found):
    return "requests" if "p99_us" in found else "fault" if "undisturbed" in found else "transfer"


def _void(found):
    return f", {found['void']} run(s) VOID for want of idle CPU" if found["void"] else ""


def summary(found):
    if kind_of(found) == "requests":
        ratios = ", ".join(f"beside a {kind} {ratio:.2f}x" for kind, ratio in found["ratios"].items())
        worst = max(found["acquire_p999_ns"].values())
        return f"p99 {ratios} (goal {found['goal']:.2f}); acquire p99.9 {worst:.0f} ns (goal {found['acquire_goal_ns']}){_void(found)}"
    if kind_of(found) == "fault":
        return (f"median of the others {found['seconds']:.3f} s, {found['ratio']:.3f} of {found['undisturbed']:.3f} s undisturbed "
                f"(goal {found['goal']:.2f}); excess egress {found['excess']:+.3f} x weights{_void(found)}")
    goal = f" (goal {found['goal']:.2f})" if "goal" in found else ""
    return (f"median {found['seconds']:.3f} s, bound {found['bound']:.3f} s, ratio {found['ratio']:.3f}{goal}, trainer egress "
            f"{found['egress']:.3f} x weights, least idle {found['idle']:.0%}{_void(found)}")


def _row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _table(head, rows):
    return [_row(*head), "|" + "---|" * len(head), *rows, ""] if rows else []


def _mark(found):
    return " (void)" if found["void"] == len(found.get("runs", [0])) else ""


def _transfers(results):
    return _table(("scenario", "method", "time, s", "least, s", "ratio", "goal", "trainer egress / weights", "least idle", "command"), [
        _row(r["title"], r["method"], f"{r['seconds']:.2f}{_mark(r)}", f"{r['bound']:.2f}", f"{r['ratio']:.3f}",
             f"{r['goal']:.2f}" if "goal" in r else "", f"{r['egress']:.3f}", f"{r['idle']:.0%}", f"`{r['command']}`") for r in results])


GATHERING = ("gloo chain", "refit broadcast")


def _against_broadcast(results):
    """Gather and broadcast against what does neither, in the same scenario: how much slower, and how much of that the byte
    counts explain."""
    rows = []
    for slow in (r for r in results if r["method"] in GATHERING and "allowed" in r):
        for fast in (r for r in results if r["scenario"] == slow["scenario"] and r["method"].startswith("refit")):
            if fast["method"] not in GATHERING:
                speed = slow["seconds"] / fast["seconds"]
                rows.append(_row(slow["title"], fast["method"], slow["method"], f"{speed:.2f}", f"{slow['allowed']:.2f}",
                                 f"{speed / slow['allowed']:.2f}"))
    return _table(("scenario", "", "against gather and broadcast by", "faster by", "byte counts allow", "of that (goal 0.95)"), rows)


def _faults(results):
    return _table(("scenario", "method", "the others, s", "undisturbed, s", "ratio", "goal", "excess egress / weights", "command"), [
        _row(r["title"], r["method"], f"{r['seconds']:.2f}{_mark(r)}", f"{r['undisturbed']:.2f}", f"{r['ratio']:.3f}", f"{r['goal']:.2f}",
             f"{r['excess']:+.3f}", f"`{r['command']}`") for r in results])


def _requests(results):
    return _table(("requests", "method", "p50, us", "p99, us", "p99 to quiet", "goal", "acquire p99.9, ns", "goal", "command"), [
        _row(kind if kind == "quiet" else f"beside a {kind}", r["method"], f"{r['p50_us'][kind]:.0f}", f"{r['p99_us'][kind]:.0f}",
             f"{r['ratios'][kind]:.2f}" if kind in r["ratios"] else "", f"{r['goal']:.2f}" if kind in r["ratios"] else "",
             f"{r['acquire_p999_ns'][kind]:.0f}", r["acquire_goal_ns"], f"`{r['command']}`") for r in results for kind in r["p99_us"]])


def _processor():
    with open("/proc/cpuinfo") as file:
        return next((line.split(": ", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine())


def section(results):
    of_kind = {kind: [r for r in results if kind_of(r) == kind] for kind in ("transfer", "fault", "requests")}
    machine = f"{os.cpu_count()} cores of {_processor()}, Linux {platform.release()}"
    return "\n".join([f"{machine}, {time.strftime('%Y-%m-%d', time.gmtime())}.", "",
                      f"![Time of a transfer in multiples of the least time]({os.path.basename(CHART)})", "",
                      *_transfers(of_kind["transfer"]), *_against_broadcast(of_kind["transfer"]), *_faults(of_kind["fault"]),
                      *_requests(of_kind["requests"])])


def merge(old, new):
    """By scenario and method; the new ones count."""
    found = {(r["scenario"], r["method"]): r for r in [*old, *new]}
    return [found[key] for key in sorted(found, key=lambda key: (key[0], not key[1].startswith("refit"), key[1]))]


def _between(text, inner):
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"cluster: {PAGE} lacks the lines {BEGIN} and {END}")
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + inner + "\n" + END + rest.split(END)[1]


def update(root, new):
    path = os.path.join(root, RESULTS)
    old = []
    if os.path.exists(path):
        with open(path) as file:
            old = json.load(file)
    results = merge(old, new)
    with open(os.path.join(root, PAGE)) as file:
        page = _between(file.read(), section(results))
    with open(path, "w") as file:
        json.dump(results, file, indent=1, sort_keys=True)
        file.write("\n")
    with open(os.path.join(root, PAGE), "w") as file:
        file.write(page)
    with open(os.path.join(root, CHART), "w") as file:
        file.write(chart.bars([r for r in results if kind_of(r) == "transfer"]))
