# SPDX-License-Identifier: Apache-2.0
"""The real refitd, with engine processes attached, against docs/openapi.yaml: the document is valid; each operation succeeds at least
once, and its answer is as documented; then schemathesis makes requests up, good and bad. Skips without schemathesis.

REFIT_API_SECONDS: how long requests are made up, for all runs together (default 24)."""
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import unittest

TOOLS = os.path.abspath(os.environ.get("REFIT_API_TOOLS", "build/tools/api"))
HERE = os.path.dirname(os.path.abspath(__file__))
DOCUMENT = os.path.join(HERE, "..", "..", "docs", "openapi.yaml")
SECONDS = int(os.environ.get("REFIT_API_SECONDS", "24"))

if __name__ == "__main__" and sys.prefix != TOOLS:
    python = os.path.join(TOOLS, "bin", "python")
    if not (os.path.exists(os.path.join(TOOLS, ".stamp")) and os.path.exists(python)):
        print(f"no schemathesis in {TOOLS}: 'make test-api' fetches it from PyPI")
        sys.exit(0)
    os.execv(python, [python, *sys.argv])

import schemathesis  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from openapi_spec_validator import validate  # noqa: E402
from openapi_spec_validator.readers import read_from_filename  # noqa: E402

sys.path.insert(0, os.path.join(HERE, "..", "system"))
from harness import SystemTest, engine_layout, source_layout  # noqa: E402

# What is not begun by accident: streams that end with a refit that never ends.
CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "501", "503"]
[checks.negative_data_rejection]
expected-statuses = ["4xx", "501", "503"]
"""
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance," \
         "response_schema_conformance,negative_data_rejection,unsupported_method"


class Document(unittest.TestCase):
    def test_it_is_valid(self):
        validate(read_from_filename(DOCUMENT)[0])


class Api(SystemTest):
    def setUp(self):
        super().setUp()
        self.a = self.replica("a", engine_layout(2))
        for version in (1, 2):
            lines = self.publish(source_layout(), [version], [self.a])
            self.assertTrue(lines[0].startswith(f"ok {version} "), lines)


class Answers(Api):
    """Each operation, made to succeed."""

    def setUp(self):
        super().setUp()
        self.schema = schemathesis.openapi.from_path(DOCUMENT)
        self.done = set()

    def call(self, method, path, status=200, admin=False, **parts):
        case = self.schema[path][method].Case(**parts)
        port = self.a.ports["admin" if admin else "control"]
        response = case.call(base_url=f"http://127.0.0.1:{port}", timeout=60)
        self.assertEqual(response.status_code, status, response.text)
        case.validate_response(response, excluded_checks=[not_a_server_error])  # the caller has said which it wants
        if status < 300:
            self.done.add((method, path))
        return response.json() if response.headers.get("content-type", [""])[0].startswith("application/json") else response

    def begin(self, version, **changes):
        text = json.dumps(source_layout(), separators=(",", ":"), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        epoch = self.call("POST", "/v1/lead", body={"name": "t", "takeover": True})["epoch"]
        self.call("PUT", "/v1/sources/{digest}", 201, path_parameters={"digest": digest}, body=json.loads(text))
        self.call("POST", "/v1/plan", body={"source": digest})
        body = {"version": version, "label": "x", "epoch": epoch, "publish_id": f"p{version}", "source": digest, "transport": "tcp",
                "commit": "barrier", "deadline_ms": 20000, **changes}
        return self.call("POST", "/refit", 202, body=body)["id"], epoch

    def look(self, refit):
        at = {"id": refit}
        self.call("GET", "/refit")
        self.call("GET", "/refit/{id}", path_parameters=at, query={"after": 0, "wait_ms": 10})
        self.call("GET", "/refit/{id}/holders", path_parameters=at)
        events = self.call("GET", "/refit/{id}/events", path_parameters=at)
        last = events.text.rsplit("id: ", 1)[1].split("\n")[0]
        self.call("GET", "/refit/{id}/events", 204, path_parameters=at, headers={"Last-Event-ID": last})

    def serve(self):
        layout = self.call("GET", "/v1/layout")
        digest = self.a.weights()["layout"]
        self.call("PUT", "/v1/sources/{digest}", 201, path_parameters={"digest": digest}, body=layout)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            served = self.call("POST", "/v1/serve", 202, body={
                "version": 1, "refit": "r", "token": "0" * 32, "holder": 0, "transport": "tcp", "deadline_ms": 20000,
                "card": {"transport": "tcp", "address": "127.0.0.1", "port": silent.getsockname()[1]},
                "layout": digest})
            self.call("GET", "/v1/serve")
            self.call("POST", "/v1/serve/{id}/end", path_parameters={"id": served["id"]}, body={})

    def test_every_operation_succeeds_as_documented(self):
        self.call("POST", "/rollback", body={"quarantine": False})
        self.call("POST", "/v1/release", body={})
        refit, epoch = self.begin(9)
        self.call("POST", "/refit/{id}/abort", path_parameters={"id": refit}, body={"reason": "a test"})
        self.a.wait_session(lambda state: state["terminal"], refit)
        self.look(refit)
        self.call("POST", "/v1/resign", body={"name": "t", "epoch": epoch})
        self.call("POST", "/v1/resign", 412, body={"name": "t", "epoch": epoch + 1})
        self.serve()
        for path in ("/v1/layout", "/v1/host", "/v1/weights", "/", "/status", "/traffic"):
            self.call("GET", path)
        digest = self.a.weights()["active"]["digest"]
        self.call("GET", "/v1/layout", 304, headers={"If-None-Match": f'"{self.a.weights()["layout"]}"'})
        self.call("GET", "/v1/digests/{version}", path_parameters={"version": str(self.a.active())})
        self.call("POST", "/v1/hold", body={})
        self.call("POST", "/v1/quarantine", body={"digest": digest, "on": False})
        self.call("POST", "/v1/release", body={})
        for path in ("/livez", "/readyz", "/startupz"):
            self.call("GET", path, admin=True, query={"verbose": ""})
        for path in ("/metrics", "/", "/status", "/traffic"):
            self.call("GET", path, admin=True)
        self.commit()
        self.call("POST", "/drain", admin=True)
        self.call("GET", "/readyz", 503, admin=True)
        wanted = {(operation.ok().method.upper(), operation.ok().path) for operation in self.schema.get_all_operations()}
        self.assertEqual(wanted - self.done, set())

    def commit(self):
        replica = self.replica("slow", engine_layout(1), reader_options=["prepare-ms=300"])
        first, self.a = self.a, replica
        ranks = self.publish(source_layout(), [1], [replica], wait=False)
        state = replica.wait_session(lambda s: s["phase"] in ("staged", "committing", "committed"))
        # The trainer commits, too: to say it again is no error.
        self.call("POST", "/refit/{id}/commit", 202, path_parameters={"id": state["id"]},
                  body={"version": 1, "digest": state["digest"]})
        for rank in ranks:
            rank.wait()
        self.a = first


class Fuzz(Api):
    """Requests that schemathesis makes up."""

    def fuzz(self, admin, parameters, seconds, *which, phases="examples,coverage,fuzzing"):
        config = self.path("schemathesis.toml")
        with open(config, "w") as file:
            file.write(CONFIG + "[parameters]\n" + "".join(f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in parameters.items()))
        port = self.a.ports["admin" if admin else "control"]
        command = [os.path.join(TOOLS, "bin", "schemathesis"), "--config-file", config, "run", DOCUMENT, "--url", f"http://127.0.0.1:{port}",
                   "--checks", CHECKS, "--phases", phases, "--seed", "1", "--generation-database", "none", "--max-examples", "25",
                   "--request-timeout", "20", "--suppress-health-check", "all", "--continue-on-failure", "--warnings", "off", "--no-color",
                   *which]
        # What a busy machine makes up in this time may be nothing yet: it is given more, until something was asked.
        for limit in (seconds, 4 * seconds, 16 * seconds):
            done = subprocess.run([*command, "--max-time", str(limit)], capture_output=True, text=True, cwd=self.scratch.name,
                                  timeout=limit * 3 + 200, check=False)
            if "Time limit reached" not in done.stdout or not re.search(r"Tested: +0", done.stdout):
                break
        if done.returncode:
            self.fail(done.stdout[-20000:] + done.stderr[-2000:])
        self.assertRegex(done.stdout, r"Tested: +[1-9]")

    def test_the_control_listener(self):
        self.fuzz(False, {}, SECONDS // 2, "--include-tag", "control")
        self.assertEqual(self.a.call("GET", "/v1/weights")[0], 200)

    def test_a_refit_that_is_there(self):
        epoch = self.a.call("POST", "/v1/lead", {"name": "t", "takeover": True})[1]["epoch"]
        text = json.dumps(source_layout(), separators=(",", ":"), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.assertEqual(self.a.call("PUT", f"/v1/sources/{digest}", text)[0], 201)
        status, ticket = self.a.call("POST", "/refit", {"version": 9, "epoch": epoch, "publish_id": "p", "source": digest})
        self.assertEqual(status, 202, ticket)
        # A poll of this one would wait as long as it may.
        self.fuzz(False, {"path.id": ticket["id"], "path.digest": digest, "query.wait_ms": 10}, SECONDS // 2, "--include-path-regex",
                  "/refit/{id}(|/holders|/commit|/abort)$|/sources/", phases="fuzzing")

    def test_the_admin_listener(self):
        self.fuzz(True, {}, SECONDS // 4, "--include-tag", "admin")


if __name__ == "__main__":
    unittest.main(verbosity=2)
