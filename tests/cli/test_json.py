# SPDX-License-Identifier: Apache-2.0
"""What `-o json` prints, and exit statuses, against real replicas: the documents of docs/cli.md."""
import json
import os
import pty
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from harness import SystemTest, engine_layout, free_port, source_layout, tool  # noqa: E402

ERROR = {"status", "text", "action"}


class Json(SystemTest):
    def setUp(self):
        super().setUp()
        self.a = self.replica("a", engine_layout(1))
        for version in (1, 2):
            lines = self.publish(source_layout(), [version], [self.a])
            self.assertTrue(lines[0].startswith(f"ok {version} "), lines)
        self.nobody = f"http://127.0.0.1:{free_port()}"

    def refit(self, *arguments, to=None, code=0):
        environment = {**os.environ, **({"REFIT_TO": to} if to else {})}
        done = subprocess.run([tool("cli", "refit"), *arguments], capture_output=True, text=True, timeout=120, env=environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertNotIn("\033", done.stdout + done.stderr)  # no terminal here
        return done

    def document(self, *arguments, **options):
        return json.loads(self.refit(*arguments, "-o", "json", **options).stdout)

    def test_replicas_have_an_item_each(self):
        item, = self.document("status", self.a.url)
        self.assertEqual((item["url"], item["active"]["version"], item["ranks"][0]["attached"]), (self.a.url, 2, True))
        good, bad = self.document("status", self.a.url, self.nobody, code=3)
        self.assertEqual((good["active"]["version"], set(bad)), (2, {"url", "error"}))
        self.assertEqual(set(bad["error"]), ERROR)
        bad, = self.document("status", self.nobody, code=1)
        self.assertEqual(bad["url"], self.nobody)
        item, = self.document("fleet", self.a.url)
        self.assertEqual(set(item), {"url", "state", "version", "digest", "refit_version", "bytes_done", "bytes_due", "pins", "stale", "held"})
        item, = self.document("watch", self.a.url)
        self.assertEqual(set(item), {"url", "id", "version", "phase", "terminal", "digest", "bytes_done", "bytes_due"})
        self.assertEqual((item["phase"], item["terminal"]), ("committed", True))
        item, = self.document("watch", self.nobody, code=1)
        self.assertEqual((set(item), set(item["error"])), ({"url", "error"}, ERROR))

    def test_changes_tell_what_they_changed(self):
        digest = self.a.weights()["active"]["digest"]
        self.assertEqual(self.document("hold", self.a.url), [{"url": self.a.url, "held": True}])
        self.assertEqual(self.document("release", self.a.url), [{"url": self.a.url, "held": False}])
        self.assertEqual(self.document("quarantine", digest, "--off", "--to", self.a.url),
                         [{"url": self.a.url, "digest": digest, "on": False}])
        item, = self.document("abort", self.a.url, code=1)  # it is committed
        self.assertEqual((item["url"], set(item["error"])), (self.a.url, ERROR))
        item, = self.document("rollback", self.a.url)
        self.assertEqual((set(item), item["active"]["version"], item["held"]), ({"url", "active", "held"}, 1, True))
        item, = self.document("rollback", "--fleet", "--version", "1", self.a.url)
        self.assertEqual(item, {"url": self.a.url, "held": True})
        self.assertEqual(self.document("rollback", self.nobody, code=1)[0]["url"], self.nobody)

    def test_members_come_from_the_environment(self):
        self.assertEqual(len(self.document("status", to=f"{self.a.url}, {self.nobody}", code=3)), 2)
        self.assertEqual(len(self.document("status", self.a.url, to=self.nobody)), 1)  # the command line counts
        self.assertEqual(len(self.document("status", "--to", self.a.url, to=self.nobody)), 1)
        self.assertEqual(self.document("hold", to=self.a.url)[0]["held"], True)
        self.assertEqual(self.document("quarantine", "f" * 64, to=self.a.url)[0]["on"], True)
        self.assertEqual(self.document("abort", to=self.a.url, code=1)[0]["url"], self.a.url)
        path = self.write_json("source.json", source_layout())
        self.assertGreater(self.document("plan", "--source-layout", path, to=self.a.url)["bytes"], 0)
        self.assertIn("--to: is required", self.refit("push", "x", "--version", "1", to=" ", code=2).stderr)

    def test_what_is_beside_refitd(self):
        admin = f"127.0.0.1:{self.a.ports['admin']}"
        good = self.document("probe", f"http://{admin}/readyz")
        self.assertEqual((good["ok"], good["status"], good["answer"]["version"]), (True, 200, 2))
        bad = self.document("probe", f"http://{admin}/nothing", "--timeout", "3s", code=1)
        self.assertEqual((bad["ok"], bad["status"]), (False, 404))
        none = self.document("probe", self.nobody, "--timeout", "1ms", code=1)
        self.assertEqual(none, {"url": self.nobody, "ok": False, "status": 0, "answer": None})
        held = self.document("drain", "--admin", admin, "--timeout", "3s", code=1)
        self.assertEqual(held, {"drained": False, "ranks_attached": 1, "refit": ""})
        for reader in self.a.readers.values():
            reader.end()
        self.assertEqual(self.document("drain", "--admin", admin), {"drained": True, "ranks_attached": 0, "refit": ""})

    def test_bars_are_drawn_on_a_terminal_only(self):
        def watch(**environment):
            terminal, other = pty.openpty()
            child = subprocess.Popen([tool("cli", "refit"), "watch", self.a.url], stdin=other, stdout=other, stderr=other,
                                     env={**os.environ, **environment})
            os.close(other)
            seen = b""
            try:
                while chunk := os.read(terminal, 4096):
                    seen += chunk
            except OSError:  # the end of a terminal
                pass
            os.close(terminal)
            self.assertEqual(child.wait(60), 0)
            return seen
        drawn = watch(TERM="xterm", NO_COLOR="1")
        self.assertIn(b"100%", drawn)
        self.assertIn(b"\033[K", drawn)
        self.assertNotRegex(drawn, rb"\033\[[0-9;]*m")
        self.assertNotIn(b"\033", watch(TERM="dumb"))
        self.assertIn("committed", self.refit("watch", self.a.url).stderr)  # a line per phase, nothing else

    def test_what_needs_no_replica(self):
        self.assertEqual(set(self.document("version")), {"version"})
        self.assertEqual(self.refit("--version").stdout, self.refit("version").stdout)
        file = self.path("one.safetensors")
        head = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        with open(file, "wb") as out:
            out.write(len(head).to_bytes(8, "little") + head + bytes(8))
        document = self.document("digest", file, "--tensors")
        self.assertEqual((document["checkpoint"], [t["tensor"] for t in document["tensors"]]), (file, ["w"]))
        self.assertEqual(self.refit("digest", file).stdout, f"{document['digest']}  {file}\n")
        self.assertEqual(set(self.document("digest", file)), {"checkpoint", "digest"})

    def test_a_push_reports_each_replica(self):
        file = self.path("one.safetensors")
        head = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        with open(file, "wb") as out:
            out.write(len(head).to_bytes(8, "little") + head + bytes(8))
        report = self.document("push", file, "--version", "9", to=self.a.url, code=1)  # it lacks tensors
        self.assertLessEqual({"version", "digest", "outcome", "action", "relayed", "membership_epoch", "bytes_sent", "bytes_saved",
                              "bytes_excess", "seconds", "sources_free_s", "replicas"}, set(report))
        replica, = report["replicas"]
        self.assertEqual(replica["url"], self.a.url)
        self.assertLessEqual({"replica", "outcome", "refit", "digest", "transport", "bytes_needed", "wire_bytes", "transfer_s", "error"},
                             set(replica))
