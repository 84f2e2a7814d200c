# SPDX-License-Identifier: Apache-2.0
"""A trainer and an engine in Python, with a real refitd between them."""
import contextlib
import ctypes
import os
import sys
import types
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "tests", "system")]
os.environ["REFIT_LIBRARY_DIR"] = os.pathsep.join(os.path.join(os.environ.get("REFIT_BUILD", "build/dev"), part)
                                                  for part in ("sender", "engine"))
import refit  # noqa: E402
from harness import SLOWDOWN, SystemTest  # noqa: E402

DEADLINE_MS = int(30000 * SLOWDOWN)


def layout(ranks, axis, placement):
    entry = {"tensor": "w", "dtype": "U8", "shape": [8, 6], "mesh": "m", "placements": [placement]}
    return {"format": "refit-layout/1", "ranks": ranks, "meshes": {"m": {"axes": [axis], "shape": [ranks]}}, "entries": [entry]}


SOURCE, ENGINE = layout(1, "fsdp", "Shard(0)"), layout(1, "tp", "Replicate")


class Tensor:
    """What is looked at of a tensor of torch."""
    device = types.SimpleNamespace(type="cpu")

    def __init__(self, address, elements, size, contiguous=True):
        self.data_ptr, self.numel, self.element_size = lambda: address, lambda: elements, lambda: size
        self.is_contiguous = lambda: contiguous


class Array:
    """What is looked at of an array of numpy."""

    def __init__(self, address, length, strides=None):
        self.__array_interface__ = {"data": (address, False), "strides": strides}
        self.nbytes = length


class Bindings(SystemTest):
    options = ()

    def setUp(self):
        super().setUp()
        self.refitd = self.replica("a", ENGINE, *self.options, readers=False)

        self.opened = contextlib.ExitStack()

    def tearDown(self):
        self.opened.close()  # before refitd ends
        super().tearDown()

    def engine(self, **hooks):
        return self.opened.enter_context(
            refit.Engine(self.refitd.socket, ENGINE, label="python", timeout_ms=DEADLINE_MS, **hooks))

    def sender(self, weights=None):
        sender = self.opened.enter_context(refit.Sender(replicas=[self.refitd.url], name="python"))
        if weights is not None:
            sender.register(SOURCE, {"w": weights})
        return sender

    def test_what_a_trainer_publishes_is_what_an_engine_reads(self):
        told = []
        engine = self.engine(prepare=lambda version, pin: told.append(("prepare", version.version, bytes(pin["w"]))),
                             before_swap=lambda version, kv: told.append(("before", version.label, kv)),
                             after_swap=lambda version, kv: told.append(("after", version.version, kv)))
        weights = bytearray(range(48))
        sender = self.sender(weights)
        report = sender.publish(1, label="one", kv="keep", deadline_ms=DEADLINE_MS)
        self.assertEqual((report.outcome, report.replicas[0].outcome, report.replicas[0].error), ("committed", "committed", None))
        self.assertEqual((report.replicas[0].bytes_needed, report.replicas[0].bytes_moved), (48, 48))
        engine.wait(DEADLINE_MS)
        with engine.acquire() as first:
            self.assertEqual((first.version, first.info.label, first.info.digest), (1, "one", report.digest))
            self.assertEqual(bytes(first["w"]), bytes(range(48)))
            self.assertTrue(first["w"].readonly)
            weights[:] = bytes(reversed(range(48)))
            sender.begin(2, deadline_ms=DEADLINE_MS)
            sender.wait_sources_free()
            self.assertEqual(sender.wait_report().outcome, "committed")
            self.assertEqual(bytes(first["w"]), bytes(range(48)))  # the pin holds it
        with engine.acquire() as second:
            self.assertEqual((second.version, bytes(second["w"])), (2, bytes(reversed(range(48)))))
            with self.assertRaises(KeyError):
                second["no such buffer"]
        self.assertEqual(told[:2], [("prepare", 1, bytes(range(48))), ("before", "one", "keep")])
        self.assertEqual(told[-1], ("after", 2, "flush"))

    def test_a_hook_that_raises_refuses_the_version_and_its_words_come_back(self):
        def prepare(version, pin):
            if version.version == 2:
                raise RuntimeError("these weights are not good")
        engine = self.engine(prepare=prepare)
        sender = self.sender(bytearray(48))
        sender.publish(1, deadline_ms=DEADLINE_MS)
        with self.assertRaises(refit.Error) as caught:
            sender.publish(2, deadline_ms=DEADLINE_MS)
        self.assertIn("these weights are not good", caught.exception.text)
        self.assertEqual(caught.exception.report.replicas[0].outcome, "aborted")
        with engine.acquire() as pin:
            self.assertEqual(pin.version, 1)

    def test_tensors_that_a_callback_gathers(self):
        engine, sender = self.engine(), self.sender()

        def gather(name, destination):
            destination[:] = bytes([ord(name[0])]) * len(destination)
        sender.register_gather([("w", "U8", [8, 6])], gather)
        seen = []
        self.assertEqual(sender.publish(1, deadline_ms=DEADLINE_MS, progress=seen.append).outcome, "committed")
        with engine.acquire() as pin:
            self.assertEqual(bytes(pin["w"]), b"w" * 48)

        def fails(name, destination):
            raise LookupError("no such shard")
        sender.register_gather([("w", "U8", [8, 6])], fails)
        with self.assertRaises(LookupError):
            sender.publish(2, deadline_ms=DEADLINE_MS)

    def test_memory_that_a_replica_on_this_host_takes_without_a_copy(self):
        engine, sender = self.engine(), self.sender()
        weights = sender.alloc(48)
        weights[:] = bytes(range(48))
        sender.register(SOURCE, {"w": weights})
        self.assertEqual(sender.publish(1, deadline_ms=DEADLINE_MS).replicas[0].transport, "local")
        with engine.acquire() as pin:
            self.assertEqual(bytes(pin["w"]), bytes(range(48)))

    def test_tensors_and_arrays_are_taken_where_they_lie(self):
        memory = (ctypes.c_ubyte * 48)(*range(48))
        address = ctypes.addressof(memory)
        tensor = Tensor(address, 24, 2)
        array = Array(address, 48)
        engine = self.engine()
        for version, weights in enumerate((tensor, array, (address, 48)), 1):
            sender = self.sender(weights)
            self.assertEqual(sender.publish(version, deadline_ms=DEADLINE_MS).outcome, "committed")
            with engine.acquire() as pin:
                self.assertEqual(bytes(pin["w"]), bytes(range(48)))
            sender.close()
        for wrong in (Tensor(address, 24, 2, contiguous=False), Array(address, 48, strides=(2,))):
            with self.assertRaises(ValueError):
                self.sender(wrong)

    def test_errors_name_the_thing(self):
        engine, sender = self.engine(), self.sender()
        with self.assertRaises(refit.Error) as caught:
            sender.register(SOURCE, {"w": bytearray(47)})
        self.assertIn("w", caught.exception.text)
        self.assertIn(caught.exception.status, ("mismatch", "invalid"))
        with self.assertRaises(ValueError):
            sender.register(SOURCE, {"w": memoryview(bytearray(96))[::2]})
        with self.assertRaises(ValueError):
            sender.register(SOURCE, {"w": bytes(48)})
        with self.assertRaises(refit.Error) as caught:
            engine.acquire()
        self.assertEqual(caught.exception.status, "not-found")


if __name__ == "__main__":
    unittest.main()
