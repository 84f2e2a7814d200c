# SPDX-License-Identifier: Apache-2.0
"""An engine in Python whose slots are on a GPU: a look-alike, whose memory is the host's and can be looked at here."""
import contextlib
import ctypes
import unittest

from test_refit import DEADLINE_MS, ENGINE, SOURCE, Bindings, refit


@contextlib.contextmanager
def stream_of(device):
    """A stream, as an engine has one."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == cuda.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
    yield stream.value
    assert cuda.cuStreamDestroy_v2(stream) == 0
    assert cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) == cuda.cuDevicePrimaryCtxRelease_v2(device) == 0


class Gpu(Bindings):
    options = ("--memory", "cuda")

    def test_buffers_are_addresses_on_the_device(self):
        engine = self.engine(memory="cuda")
        self.assertEqual(engine.device, 0)
        sender = self.sender(bytearray(range(48)))
        sender.publish(1, deadline_ms=DEADLINE_MS)
        pin = engine.acquire()
        interface = pin["w"].__cuda_array_interface__
        self.assertEqual((interface["shape"], interface["data"][1]), ((48,), True))
        self.assertEqual(ctypes.string_at(interface["data"][0], 48), bytes(range(48)))
        with stream_of(0) as stream:
            pin.release_on_stream(stream)
            engine.detach()  # waits for it

    def test_an_engine_that_reads_host_memory_is_told(self):
        with self.assertRaises(refit.Error) as caught:
            refit.Engine(self.refitd.socket, ENGINE, timeout_ms=2000)
        self.assertEqual(caught.exception.status, "mismatch")

    def test_a_trainer_whose_weights_are_on_a_gpu(self):
        engine = self.engine(memory="any")
        sender = self.sender(bytearray(reversed(range(48))))
        sender.publish(1, deadline_ms=DEADLINE_MS)
        with engine.acquire() as pin:  # memory of the device that is known to hold something
            address, length = pin.address("w")
            other = self.sender()
            other.register(SOURCE, {"w": (address, length, engine.device)})
            other.publish(2, deadline_ms=DEADLINE_MS)
        with engine.acquire() as pin:
            self.assertEqual(pin.version, 2)
            self.assertEqual(ctypes.string_at(pin.address("w")[0], 48), bytes(reversed(range(48))))


def load_tests(loader, _, pattern):
    return loader.loadTestsFromNames(["test_buffers_are_addresses_on_the_device", "test_an_engine_that_reads_host_memory_is_told",
                                      "test_a_trainer_whose_weights_are_on_a_gpu"], Gpu)


if __name__ == "__main__":
    unittest.main()
