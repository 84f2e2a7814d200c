#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the table of values in a chart's README.md from the comments in its values.yaml, between two marks.

    scripts/chart-readme.py CHART_DIR [--check]

A comment directly above a key describes it. --check changes nothing and ends with 1 when the README is not up to date.
Reads the plain style that values.yaml is written in: block mappings, two spaces, scalars or flow collections as values.
"""
import os
import re
import sys

BEGIN, END = "<!-- values: scripts/chart-readme.py -->", "<!-- /values -->"
KEY = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):(?: (.*))?$")


def parse(text):
    """[(path, default or None for a group, description)], in order."""
    rows, path, comment = [], [], []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("#").strip())
        elif not line.strip():
            comment = []
        else:
            match = KEY.match(line)
            if not match or len(match.group(1)) % 2:
                raise SystemExit(f"chart-readme.py: values.yaml:{number}: not in the plain style: {line}")
            depth = len(match.group(1)) // 2
            path[depth:] = [match.group(2)]
            rows.append((".".join(path), match.group(3), " ".join(comment)))
            comment = []
    return rows


def table(rows):
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for name, default, description in rows:
        if default is None:
            if description:
                lines.append(f"| `{name}` | | {escape(description)} |")
            continue
        if not description:
            raise SystemExit(f"chart-readme.py: values.yaml: {name} has no comment")
        lines.append(f"| `{name}` | `{default}` | {escape(description)} |")
    return "\n".join(lines)


def escape(text):
    return text.replace("|", "\\|")


def main():
    chart, check = sys.argv[1], "--check" in sys.argv[2:]
    with open(os.path.join(chart, "values.yaml"), encoding="utf-8") as file:
        rows = parse(file.read())
    readme = os.path.join(chart, "README.md")
    with open(readme, encoding="utf-8") as file:
        text = file.read()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    wanted = f"{before}{BEGIN}\n{table(rows)}\n{END}{after}"
    if wanted == text:
        return 0
    if check:
        print(f"{readme} is not up to date: run scripts/chart-readme.py {chart}", file=sys.stderr)
        return 1
    with open(readme, "w", encoding="utf-8") as file:
        file.write(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
