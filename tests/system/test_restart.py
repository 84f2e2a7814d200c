# SPDX-License-Identifier: Apache-2.0
"""A restarted refitd takes its slots back from live engines, with no transfer, in both protections."""
import os
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
