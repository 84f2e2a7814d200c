# SPDX-License-Identifier: Apache-2.0
"""A restarted refitd takes its slots back from live engines, with no transfer, in both protections."""
import hashlib
import json
import os
import random
import time
import unittest

from harness import SystemTest, engine_layout, source_layout


class Restart(SystemTest):
    def succeeds(self, replica, version):
        lines = self.publish(source_layout(), [version], [replica])
        self.assertTrue(lines and lines[0].startswith(f"ok {version} "), lines)
        replica.wait_step(version)

    def restart(self, replica):
        replica.refitd.kill()
        replica.refitd.wait()
        replica.start()

    def wait_ready(self, replica, version):
        for _ in range(2000):
            status, body = replica.admin("/readyz")
            if status == 200 and body["version"] == version:
                return body
            time.sleep(0.01)
        self.fail(f"not ready with version {version}: {status} {body}")

    def take_back(self, protection):
        replica = self.replica("a", engine_layout(2), "--protection", protection)
        self.succeeds(replica, 1)
        self.succeeds(replica, 2)
        digest = replica.weights()["active"]["digest"]
        self.restart(replica)
        self.assertEqual(self.wait_ready(replica, 2)["digest"], digest)
        self.assertEqual(replica.call("GET", "/refit")[0], 404)  # nothing was transferred to get there
        return replica

    def test_uid_protection(self):
        replica = self.take_back("uid")
        status, answer = replica.call("POST", "/rollback", {})  # the retained slot came back, too
        self.assertEqual((status, answer["active"]["version"]), (200, 1))
        replica.call("POST", "/v1/release", {})
        for version in (3, 4, 5):
            self.succeeds(replica, version)

    def test_seal_protection(self):
        replica = self.take_back("seal")
        for version in (3, 4, 5):  # the sealed slot is served until it retires, then replaced
            self.succeeds(replica, version)

    def test_again_and_again(self):
        replica = self.take_back("uid")
        for version in (3, 4, 5):
            self.restart(replica)
            self.wait_ready(replica, version - 1)
            self.succeeds(replica, version)

    def test_without_any_engine_left_nothing_is_served(self):
        replica = self.replica("a", engine_layout(2), "--adopt-timeout", "500ms")
        self.succeeds(replica, 1)
        for reader in replica.readers.values():
            reader.kill()
            reader.wait()
        self.restart(replica)
        replica.start_readers()
        self.assertEqual(replica.admin("/readyz")[0], 503)
        self.succeeds(replica, 2)

    def test_epoch_and_hold_survive(self):
        replica = self.replica("a", engine_layout(1))
        self.succeeds(replica, 1)
        self.succeeds(replica, 2)
        replica.call("POST", "/rollback", {})
        before = replica.weights()
        self.restart(replica)
        self.wait_ready(replica, 1)
        after = replica.weights()
        self.assertTrue(after["held"])
        self.assertEqual(after["epoch"], before["epoch"])
        self.assertNotEqual(after["instance"], before["instance"])
        self.assertGreater(replica.call("POST", "/v1/lead", {"name": "someone"})[1]["epoch"], before["epoch"])

    def test_every_post_repeated_and_reordered_after_a_restart_changes_nothing(self):
        replica = self.replica("a", engine_layout(2), "--slots", "3")
        self.succeeds(replica, 1)
        self.succeeds(replica, 2)
        committed = replica.call("GET", "/refit")[1]
        epoch = replica.call("POST", "/v1/lead", {"name": "t", "takeover": True})[1]["epoch"]
        text = json.dumps(source_layout(), separators=(",", ":"), sort_keys=True)
        source = hashlib.sha256(text.encode()).hexdigest()
        replica.call("PUT", f"/v1/sources/{source}", text)
        body = {"version": 3, "epoch": epoch, "publish_id": "p", "source": source, "transport": "tcp"}
        _, running = replica.call("POST", "/refit", body)
        said = [("/refit", body, 404),  # the source has to be put again
                ("/refit", {**body, "version": 2}, 409), ("/refit", {**body, "epoch": epoch - 1}, 412),
                ("/refit", {**body, "epoch": committed["epoch"], "publish_id": committed["publish_id"], "version": 2}, 412),
                *[(f"/refit/{refit['id']}/{word}", what, 404) for refit in (committed, running)
                  for word, what in (("commit", {"version": 2, "digest": committed["digest"]}), ("abort", {"reason": "late"}))],
                ("/v1/release", {}, 200), ("/v1/quarantine", {"digest": "0" * 64, "on": True}, 200),
                ("/v1/plan", {"source": source}, 404)]
        self.restart(replica)
        self.wait_ready(replica, 2)
        order = random.Random(1)
        for _ in range(5):
            order.shuffle(said)
            for path, what, expected in said:
                status, answer = replica.call("POST", path, what)
                self.assertEqual(status, expected, (path, what, answer))
        weights = replica.weights()
        self.assertEqual((weights["active"]["version"], weights["active"]["digest"], weights["retained"][0]["version"]),
                         (2, committed["digest"], 1))
        replica.call("PUT", f"/v1/sources/{source}", text)
        status, again = replica.call("POST", "/refit", body)  # of the refit that the restart ended nothing is left: a new one
        self.assertEqual((status, again["existing"]), (202, False))
        self.assertNotEqual(again["id"], running["id"])
        replica.call("POST", f"/refit/{again['id']}/abort", {"reason": "test"})
        replica.wait_session(lambda state: state["terminal"], again["id"])
        self.succeeds(replica, 4)

    def test_a_rollback_repeated_after_a_restart_stays_where_it_was(self):
        replica = self.replica("a", engine_layout(2))
        self.succeeds(replica, 1)
        self.succeeds(replica, 2)
        for _ in range(2):
            status, answer = replica.call("POST", "/rollback", {})
            self.assertEqual((status, answer["active"]["version"]), (200, 1))
            self.restart(replica)
            self.wait_ready(replica, 1)
        self.assertEqual(replica.call("POST", "/v1/release", {})[0], 200)
        self.succeeds(replica, 3)

    @unittest.skipUnless(os.geteuid() == 0, "mounting a small file system needs root")
    def test_a_full_disk_loses_nothing(self):
        import subprocess
        small = self.path("small")
        os.mkdir(small)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "refit-test", small], check=False)
        if mounted.returncode != 0:
            self.skipTest("tmpfs can't be mounted here")
        try:
            replica = self.replica("a", engine_layout(1), "--state-file", os.path.join(small, "state"))
            self.succeeds(replica, 1)
            with open(os.path.join(small, "ballast"), "wb", buffering=0) as ballast:
                try:
                    while True:
                        ballast.write(bytes(4096))
                except OSError:
                    pass
            lines = self.publish(source_layout(), [2], [replica])
            self.assertIn(replica.active(), (1, 2), lines)
            os.unlink(os.path.join(small, "ballast"))
            self.succeeds(replica, 3)
            self.restart(replica)
            self.wait_ready(replica, 3)
        finally:
            for child in self.children:
                child.end()
            subprocess.run(["umount", small], check=False)


if __name__ == "__main__":
    unittest.main()
