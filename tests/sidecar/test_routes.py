# SPDX-License-Identifier: Apache-2.0
"""Every route of refitd is in docs/openapi.yaml, and the other way round. Needs no parser of YAML: one operation, one line each."""
import os
import re
import subprocess
import unittest

BUILD = os.environ.get("REFIT_BUILD", "build/dev")
DOCUMENT = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "openapi.yaml")


def served():
    lines = subprocess.run([os.path.join(BUILD, "tests", "sidecar", "list_routes")], capture_output=True, text=True, check=True)
    return [line.split() for line in lines.stdout.splitlines()]


def documented():
    """(listener, method, path without names) -> {"role", "body"}."""
    found, path = {}, None
    with open(DOCUMENT) as file:
        for line in file:
            if re.match(r"\S", line):
                path = None
            if match := re.match(r"  (/\S*):$", line):
                path = re.sub(r"\{\w+\}", "{}", match[1])
            elif path and (match := re.match(r"    (get|post|put|delete|patch):$", line)):
                method, operation = match[1].upper(), {"body": False, "role": None}
            elif path and (match := re.match(r"      tags: \[(.*)\]$", line)):
                for listener in match[1].split(", "):
                    found[listener, method, path] = operation
            elif path and (match := re.match(r"      x-refit-role: (\w+)$", line)):
                operation["role"] = match[1]
            elif path and re.match(r"      requestBody: ", line):
                operation["body"] = True
    return found


class Routes(unittest.TestCase):
    def test_the_document_and_the_server_have_the_same_routes(self):
        real = {(listener, method, path) for listener, method, path, _, _ in served()}
        self.assertGreater(len(real), 30)
        self.assertEqual(sorted(real - set(documented())), [], "served, and not in docs/openapi.yaml")
        self.assertEqual(sorted(set(documented()) - real), [], "in docs/openapi.yaml, and not served")

    def test_roles_and_bodies_are_those_of_the_server(self):
        document = documented()
        for listener, method, path, limit, role in served():
            with self.subTest(listener=listener, method=method, path=path):
                self.assertEqual(document[listener, method, path]["body"], limit != "0")
                if listener == "control":
                    self.assertEqual(document[listener, method, path]["role"], role)


if __name__ == "__main__":
    unittest.main()
