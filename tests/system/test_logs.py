# SPDX-License-Identifier: Apache-2.0
"""The log of refitd: what is in it, and that nothing about it holds refitd up: a full disk, a reader that sleeps or left, no descriptor."""
import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import unittest

from harness import SystemTest, WAIT_S, engine_layout, source_layout, tool

F_SETPIPE_SZ = 1031


class Logs(SystemTest):
    def start(self, stderr, *options, before=(), socket="s"):
        """A refitd without engines, its standard error as given; its ports."""
        layout, ports = self.write_json("layout.json", engine_layout(2)), self.path("ports")
        self.refitd = subprocess.Popen(
            [*before, os.path.abspath(tool("sidecar", "refitd")), "--socket", self.path(socket), "--ranks", "2", "--layout", layout, "--control",
             "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", "127.0.0.1:0", "--ports-file", ports, "--log-level", "debug", *options],
            stdin=subprocess.DEVNULL, stderr=stderr)
        self.addCleanup(self.end)
        child = type("Started", (), {"process": self.refitd, "name": "none"})
        self.ports = self.wait_json(ports, child)
        return type("Bare", (), {"url": f"http://127.0.0.1:{self.ports['control']}"})

    def end(self):
        if self.refitd.poll() is None:
            self.refitd.kill()
        self.refitd.wait()

    def metric(self, name):
        done = subprocess.run(["curl", "-sf", f"http://127.0.0.1:{self.ports['admin']}/metrics"], capture_output=True, text=True, check=True)
        return int(re.search(rf"^{name} (\d+)$", done.stdout, re.M).group(1))

    def refits(self, replica, versions):
        lines = self.publish(source_layout(), versions, [replica], "takeover")
        self.assertTrue(lines and all(line.startswith(("ok", "replica", "fleet")) for line in lines), lines)
        self.assertEqual(self.metric("refit_version"), versions[-1])

    def stops(self):
        self.refitd.send_signal(signal.SIGTERM)
        self.assertEqual(self.refitd.wait(WAIT_S), 0)

    def test_a_full_disk_for_the_log_changes_nothing_but_a_counter(self):
        with open("/dev/full", "wb") as full:
            replica = self.start(full)
        self.refits(replica, [1, 2])
        self.assertGreater(self.metric("refit_log_lines_lost_total"), 5)
        self.stops()

    def test_a_reader_that_sleeps_holds_nothing_up_and_learns_what_it_missed(self):
        read, write = os.pipe()
        fcntl.fcntl(write, F_SETPIPE_SZ, 4096)
        replica = self.start(write)
        os.close(write)
        version = 0
        while self.metric("refit_log_lines_lost_total") == 0 and version < 400:  # the pipe, then 1 MiB of queue
            self.flood()
            version += 1
        self.assertGreater(self.metric("refit_log_lines_lost_total"), 0)
        self.refits(replica, [1000])
        text = b""
        while b'msg="log lines were lost"' not in text:
            piece = os.read(read, 1 << 16)
            self.assertTrue(piece)
            text += piece
        self.stop_while_reading(read)

    def flood(self):
        """Some hundred audit lines of about 200 bytes, through one connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["control"], timeout=WAIT_S)
        for _ in range(300):
            connection.request("POST", "/v1/quarantine", json.dumps({"digest": "0" * 64}))
            self.assertEqual(connection.getresponse().read()[:1], b"{")
        connection.close()

    def stop_while_reading(self, read):
        self.refitd.send_signal(signal.SIGTERM)
        while os.read(read, 1 << 16):
            pass
        os.close(read)
        self.assertEqual(self.refitd.wait(WAIT_S), 0)

    def test_a_reader_that_never_comes_does_not_keep_it_from_ending(self):
        read, write = os.pipe()
        fcntl.fcntl(write, F_SETPIPE_SZ, 4096)
        self.start(write)
        os.close(write)
        for _ in range(3):
            self.flood()
        self.stops()
        os.close(read)

    def test_a_reader_that_left_and_a_closed_descriptor_kill_nobody(self):
        read, write = os.pipe()
        replica = self.start(write)
        os.close(write)
        os.close(read)
        self.refits(replica, [1, 2])
        self.stops()
        os.remove(self.path("ports"))
        replica = self.start(None, before=("sh", "-c", "exec \"$@\" 2>&- <&- >&-", "--"), socket="t")
        for number in range(3):
            self.assertEqual(os.readlink(f"/proc/{self.refitd.pid}/fd/{number}"), "/dev/null")
        self.refits(replica, [3])
        self.stops()

    def test_a_read_only_file_system_is_enough_but_for_the_sockets_directory(self):
        if os.geteuid() != 0 or not shutil.which("unshare"):
            self.skipTest("mounting needs root and unshare")
        script = "mount --make-rprivate / && mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind / && exec \"$@\""
        if subprocess.run(["unshare", "-m", "sh", "-c", script, self.scratch.name, "true"], capture_output=True, check=False).returncode:
            self.skipTest("a mount namespace with a read-only root can't be made here")
        with open(self.path("refitd.log"), "wb") as log:
            replica = self.start(log, before=("unshare", "-m", "sh", "-c", script, self.scratch.name))
        self.refits(replica, [1, 2])
        self.stops()
        with open(self.path("refitd.log")) as log:
            self.assertNotIn("level=error", log.read())


class Lines(SystemTest):
    def refit_lines(self, scale):
        replica = self.replica(f"r{scale}", engine_layout(2, scale), "--log-format", "json")
        lines = self.publish(source_layout(2, scale), [1, 2], [replica])
        self.assertTrue(lines and lines[0].startswith("ok 1 "), lines)
        replica.wait_step(2)
        replica.refitd.end()
        with open(self.path(f"refitd-r{scale}.log")) as log:
            return [json.loads(line) for line in log]

    def test_one_json_line_per_event_with_refit_and_version_and_none_per_chunk(self):
        small, large = self.refit_lines(1), self.refit_lines(16)
        for lines in (small, large):
            for line in lines:
                self.assertEqual(list(line)[:4], ["ts", "level", "component", "msg"])
                self.assertRegex(line["ts"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            changes = [line for line in lines if line["msg"] == "audit"]
            self.assertEqual([line["change"] for line in changes if line["change"] in ("begin", "commit", "swap")],
                             ["begin", "commit", "swap"] * 2)
            for line in changes:
                if line["change"] in ("begin", "commit"):
                    self.assertTrue(line["refit"] and line["version"] in (1, 2) and line["by"], line)
                if line["change"] == "swap":
                    self.assertEqual((line["to"] - line["from"], len(line["digest"]), bool(line["refit"])), (1, 64, True), line)
        about = [sum(line["msg"] != "audit" for line in lines) for lines in (small, large)]
        self.assertLess(abs(about[0] - about[1]), 6, about)  # 250 times the bytes


if __name__ == "__main__":
    unittest.main()
