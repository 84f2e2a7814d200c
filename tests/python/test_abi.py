# SPDX-License-Identifier: Apache-2.0
"""Each structure of the bindings is the header's: same members, same order, same size, as a C compiler has them."""
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))
from refit import _c  # noqa: E402

HEADERS = {name: os.path.join(ROOT, *path) for name, path in {
    "status": ("base", "include", "refit", "status.h"), "sender": ("sender", "include", "refit", "sender.h"),
    "engine": ("engine", "include", "refit", "engine.h")}.items()}
STRUCTURES = {"refit_error": _c.Error, "refit_sender_config": _c.SenderConfig, "refit_sender_buffer": _c.SenderBuffer,
              "refit_sender_tensor": _c.SenderTensor, "refit_replica_progress": _c.ReplicaProgress, "refit_publish": _c.Publish,
              "refit_replica_report": _c.ReplicaReport, "refit_report": _c.Report, "refit_version": _c.Version,
              "refit_pin": _c.Pin, "refit_engine_config": _c.EngineConfig,
              "refit_memory_info": _c.MemoryInfo}


def text_of(header):
    with open(HEADERS[header], encoding="utf-8") as file:
        return re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)


def compiled(lines):
    """What a C program prints that has these lines in main."""
    with tempfile.TemporaryDirectory(prefix="refit-abi.") as directory:
        source, program = os.path.join(directory, "abi.c"), os.path.join(directory, "abi")
        with open(source, "w", encoding="utf-8") as file:
            file.write("#include <stddef.h>\n#include <stdio.h>\n#include <refit/engine.h>\n#include <refit/sender.h>\n"
                       "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n")
        includes = [f"-I{os.path.dirname(os.path.dirname(path))}" for path in HEADERS.values()]
        subprocess.run([os.environ.get("CC", "cc"), *includes, "-o", program, source], check=True)
        return dict(line.split() for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines())


class Abi(unittest.TestCase):
    def test_members_lie_where_the_compiler_puts_them(self):
        lines = []
        for name, struct in STRUCTURES.items():
            lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
            lines += [f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field}));' for field, *_ in struct._fields_]
        offsets = compiled(lines)
        for name, struct in STRUCTURES.items():
            self.assertEqual(int(offsets[name]), ctypes.sizeof(struct), f"size of {name}")
            for field, *_ in struct._fields_:
                self.assertEqual(int(offsets[f"{name}.{field}"]), getattr(struct, field).offset, f"{name}.{field}")

    def test_no_member_is_missing(self):
        texts = text_of("status") + text_of("sender") + text_of("engine")
        for name, struct in STRUCTURES.items():
            body = re.search(rf"struct {name} {{(.*?)}};", texts, flags=re.S).group(1)
            members = [re.sub(r"\[.*", "", member).strip().lstrip("*")
                       for line in body.split(";") if line.strip() for member in line.strip().split(",")]
            members = [member.split()[-1].lstrip("*") for member in members]
            self.assertEqual(members, [field for field, *_ in struct._fields_], name)

    def test_every_function_is_bound(self):
        """But those that a language with objects has no use for."""
        left_out = {"refit_sender_publish", "refit_engine_table"}
        for header, bound in (("sender", _c.SENDER), ("engine", _c.ENGINE)):
            declared = set(re.findall(r"REFIT_API [^;(]*?\b\*?(refit_\w+)\(", text_of(header)))
            self.assertEqual(declared - left_out, {name for name in bound if not name.startswith("refit_status_")}, header)


if __name__ == "__main__":
    unittest.main()
