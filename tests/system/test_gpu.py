# SPDX-License-Identifier: Apache-2.0
"""Slots on devices, over the look-alike of libcuda.so.1: the trainer is on the host, refitd stages, engines map."""
import contextlib
import os
import signal
import unittest

import test_checkpoint
from harness import SystemTest, engine_layout, source_layout, tool
from test_policies import Fleet

CUDA = ("--memory", "cuda")
DEVICES = int(os.environ.get("REFIT_TEST_GPUS", "2"))  # of the driver; scripts/test-gpu.sh says how many
SWITCHES = "REFIT_TEST_NO_SWITCHES" not in os.environ
needs_switches = unittest.skipUnless(SWITCHES, "needs a driver that can be made to fail, and this one has no switches")


def memory(ranks):
    """A device for each rank, as far as there are."""
    return CUDA if DEVICES >= ranks else ("--memory", "cuda:" + ",".join(str(rank % DEVICES) for rank in range(ranks)))


@contextlib.contextmanager
def environment(**names):
    os.environ.update(names)
    yield
    for name in names:
        del os.environ[name]


class Devices(SystemTest):
    def gpu(self, name, ranks=2, *options, reader_options=()):
        """A replica on devices; `control` is a file through which its refitd's device is told to fail or to stop."""
        control = self.path(name + ".control")
        with environment(STANDIN_CUDA_CONTROL=control):
            replica = self.replica(name, engine_layout(ranks), *memory(ranks), *options, readers=False,
                                   reader_options=["cuda", *reader_options])
        replica.control = control
        return replica.start_readers()

    def tell(self, replica, order):
        with open(replica.control + ".new", "w") as file:
            file.write(order)
        os.rename(replica.control + ".new", replica.control)

    def succeeds(self, version, *replicas, options=()):
        lines = self.publish(source_layout(), [version], replicas, *options)
        self.assertTrue(lines[0].startswith(f"ok {version} "), lines)
        for replica in replicas:
            replica.wait_step(version)
        self.assertEqual(len({replica.weights()["active"]["digest"] for replica in replicas}), 1)
        return lines[0].split(" ")

    def assert_ends_clean(self, *replicas):
        """The look-alike ends a process that leaves anything allocated with another status."""
        for replica in replicas:
            for reader in replica.readers.values():
                self.assertEqual(reader.end(), 0)
            self.assertEqual(replica.refitd.end(), 0)

    def wait_weights(self, replica, wanted):
        for _ in range(3000):
            weights = replica.weights()
            if wanted(weights):
                return weights
            replica.readers[0].changed.acquire()
            replica.readers[0].changed.wait(0.01)
            replica.readers[0].changed.release()
        self.fail(f"not there: {weights}")


class Gpu(Devices):
    def test_versions_arrive_whole_over_both_transports_and_roll_back(self):
        replica, host = self.gpu("gpu"), self.replica("host", engine_layout(1))
        for version, transport in ((1, "tcp"), (2, "local"), (3, "tcp"), (4, "local")):
            self.succeeds(version, replica, host, options=[f"transport={transport}"])
        weights = replica.weights()
        self.assertEqual((weights["memory"], weights["protection"]), ("cuda", "mapping"))
        self.assertEqual([rank["device"]["number"] for rank in weights["ranks"]], [0, 1 % DEVICES])
        self.assertEqual(host.weights()["ranks"][0]["device"], None)
        status, metrics = replica.admin("/metrics")
        uuid = "GPU-5b5b5b5b-" if SWITCHES else "GPU-"
        self.assertIn(f'refit_rank_device_info{{rank="1",device="{1 % DEVICES}",uuid="{uuid}', metrics)
        self.assertEqual(replica.call("POST", "/rollback", {})[1]["active"]["version"], 3)
        for reader in replica.readers.values():
            reader.wait_line("step 3 ", after=reader.wait_line("step 4 "))
        self.assertEqual(replica.call("POST", "/v1/release", {})[0], 200)
        self.succeeds(5, replica, host)
        self.assert_ends_clean(replica, host)

    def test_versions_come_to_constant_addresses(self):
        for name, *options in (("copy",), ("copy", "--staging", "host"), ("remap",), ("in-place", "--slots", "1")):
            replica = self.gpu("-".join([name, *options]), 2, "--swap", name, *options, reader_options=["stable"])
            for version in (1, 2, 3):
                self.succeeds(version, replica, options=["transport=" + ("tcp" if version == 2 else "local")])
            if name != "in-place":
                self.assertEqual(replica.call("POST", "/rollback", {})[1]["active"]["version"], 2)
                for reader in replica.readers.values():
                    reader.wait_line("step 2 ", after=reader.wait_line("step 3 "))
                self.assertEqual(replica.call("POST", "/v1/release", {})[0], 200)
                self.succeeds(4, replica)
            self.assert_ends_clean(replica)

    def test_slots_outlive_refitd_and_engines(self):
        replica = self.gpu("gpu")
        self.succeeds(1, replica)
        self.succeeds(2, replica)
        digest = replica.weights()["active"]["digest"]
        replica.refitd.kill()
        replica.refitd.wait()
        replica.start()
        state = self.wait_weights(replica, lambda weights: weights["active"] and not weights["adopting"])
        self.assertEqual((state["active"]["version"], state["active"]["digest"]), (2, digest))
        self.assertEqual(replica.call("GET", "/refit")[0], 404)  # nothing was transferred to get there
        self.succeeds(3, replica)
        for reader in replica.readers.values():
            reader.kill()
            reader.wait()
        self.succeeds_without_readers(replica, 4)
        replica.start_readers()
        replica.wait_step(4)
        self.succeeds(5, replica)
        self.assert_ends_clean(replica)

    def succeeds_without_readers(self, replica, version):
        self.assertTrue(self.publish(source_layout(), [version], [replica])[0].startswith(f"ok {version} "))

    def test_swap_modes_keep_addresses_on_a_device(self):
        for mode in ("copy", "remap", "in-place"):
            with self.subTest(mode=mode):
                replica = self.replica(mode, engine_layout(2), *memory(2), "--swap", mode, "--slots", "1" if mode == "in-place" else "2",
                                       reader_options=["cuda", "stable"])
                for version in (1, 2, 3):
                    self.succeeds(version, replica)
                self.assertEqual((replica.weights()["swap"], replica.weights()["memory"]), (mode, "cuda"))
                self.assert_ends_clean(replica)

    def test_versions_may_wait_in_host_memory_where_two_do_not_fit_the_device(self):
        replica = self.gpu("gpu", 2, "--staging", "host", "--swap", "copy", "--slots", "3")
        for version in (1, 2, 3):
            self.succeeds(version, replica)
        self.assertEqual([slot["memory"] for slot in replica.weights()["slots"]], ["cuda", "host", "host"])
        self.assertEqual(replica.call("POST", "/rollback", {})[1]["active"]["version"], 2)
        self.assertEqual(replica.call("POST", "/v1/release", {})[0], 200)
        self.succeeds(4, replica)
        replica.refitd.kill()
        replica.refitd.wait()
        replica.start()
        self.wait_weights(replica, lambda weights: weights["active"] and not weights["adopting"])
        self.assertEqual(replica.active(), 4)
        self.succeeds(5, replica)
        self.assert_ends_clean(replica)

    @needs_switches
    @unittest.skipUnless(os.environ.get("REFIT_TEST_NCCL"), "NCCL is not in this build")
    def test_a_trainer_on_gpus_publishes_to_slots_on_gpus(self):
        """Over tcp through host memory at both ends; with --receive sidecar by NCCL, which is not offered otherwise."""
        staged = self.gpu("staged")
        self.succeeds(1, staged, options=["cuda", "transport=tcp"])
        lines = self.publish(source_layout(), [2], [staged], "cuda", "transport=nccl", "deadline=5000")
        self.assertTrue(lines[0].startswith("failed 2 "), lines)
        sidecar = self.gpu("sidecar", 2, "--receive", "sidecar")
        for version in (3, 4):
            with environment(STANDIN_CUDA_ORDER="4,5"):  # NCCL takes one process per GPU
                words = self.succeeds(version, sidecar, options=["cuda", "transport=nccl"])
            self.assertEqual(words[-1], "nccl")
        self.succeeds(5, staged, sidecar, options=["cuda", "transport=tcp"])
        self.assert_ends_clean(staged, sidecar)

    @needs_switches
    def test_a_call_that_fails_costs_at_most_its_refit(self):
        replica = self.gpu("gpu")
        self.succeeds(1, replica)
        served = 1
        calls = ("cuMemcpyHtoDAsync_v2", "cuLaunchKernel", "cuEventRecord", "cuEventQuery", "cuMemcpyDtoHAsync_v2", "cuCtxPushCurrent_v2")
        for version, call in enumerate(calls, 2):
            with self.subTest(call=call):
                self.tell(replica, f"fail {call} 3")
                lines = self.publish(source_layout(), [version], [replica], "transport=tcp" if version % 2 else "transport=local")
                served = version if lines[0].startswith("ok ") else served
                self.assertEqual(replica.active(), served)
                replica.wait_step(served)
        self.succeeds(20, replica)
        self.assert_ends_clean(replica)

    @needs_switches
    def test_a_device_that_stands_still_costs_the_refit_its_deadline(self):
        replica = self.gpu("gpu")
        self.succeeds(1, replica)
        self.tell(replica, "hold 1")
        lines = self.publish(source_layout(), [2], [replica], "deadline=1500")
        self.assertTrue(lines[0].startswith("failed 2 "), lines)
        self.assertEqual(replica.active(), 1)
        self.tell(replica, "hold 0")
        self.succeeds(3, replica)
        self.assert_ends_clean(replica)

    def test_checkpoints_come_into_device_memory(self):
        root = self.path("root")
        test_checkpoint.write_checkpoint(os.path.join(root, "one"), 7)
        replica = self.gpu("gpu", 2, "--checkpoint-root", root)
        status, answer = replica.call("POST", "/refit", {"checkpoint": "one", "version": 7, "commit": "auto"})
        self.assertEqual(status, 202, answer)
        self.assertEqual(replica.wait_end(7)["phase"], "committed")
        replica.wait_step(7)
        self.assert_ends_clean(replica)

    def test_a_refitd_without_its_device_says_why_it_does_not_start(self):
        replica = self.gpu("gpu", 1)
        for where, text in (("cuda:9", f"CUDA device 9: the driver has {DEVICES}"), ("cuda:0,1", "names 2 devices for --ranks 1")):
            child = self.child(f"refitd-{where[5:]}", tool("sidecar", "refitd"), "--socket", self.path("other.sock"), "--memory",
                               where, "--control", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", "127.0.0.1:0")
            self.assertNotEqual(child.wait(), 0)
            with open(self.path(child.name + ".log")) as log:
                self.assertIn(text, log.read())
        self.assert_ends_clean(replica)


class Relays(Fleet):
    STRATEGY = "relay"

    def test_members_pass_on_what_lies_in_device_memory(self):
        """Two of one layout, one of another that they serve, and one in host memory."""
        members = [self.replica(f"m{i}", engine_layout(1), *CUDA, reader_options=["cuda"]) for i in range(2)]
        members += [self.replica("tp2", engine_layout(2), *memory(2), reader_options=["cuda"]), self.replica("host", engine_layout(1))]
        for version in (1, 2):
            lines = self.go(members, version)
            self.assertTrue(lines[0].startswith(f"ok {version} "), lines)
            for member in members:
                member.wait_step(version)
        self.assertEqual(len({member.weights()["active"]["digest"] for member in members}), 1)

    def test_members_on_one_host_read_each_others_slots_and_touch_no_ring(self):
        """What comes by tcp is staged and counts as copied; nothing that a member has of another one does."""
        members = [self.replica(f"m{i}", engine_layout(2), *memory(2), reader_options=["cuda"]) for i in range(2)]
        for version in (1, 2):
            lines = self.go(members, version, "transport=tcp")
            self.assertTrue(lines[0].startswith(f"ok {version} "), lines)
            for member in members:
                refit = member.call("GET", "/refit")[1]
                supplied = refit["supplied"]
                self.assertGreater(supplied["domain_bytes"], 0)
                self.assertEqual(supplied["origin_bytes"] + supplied["domain_bytes"], refit["bytes_due"])
                self.assertEqual(refit["copied_bytes"], supplied["origin_bytes"], refit)


if __name__ == "__main__":
    unittest.main()
