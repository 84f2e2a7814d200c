# SPDX-License-Identifier: Apache-2.0
"""An engine process that reads weights which change while it serves: <refit/engine.h>."""
import ctypes
from typing import NamedTuple

from refit import _c, memory
from refit.errors import check, of
from refit.sender import _layout_text


class Version(NamedTuple):
    version: int
    label: str
    digest: str


def _version(struct):
    return Version(struct.version, struct.label.decode(errors="replace"), struct.digest.decode())


class Pin:
    """One version, whose bytes stay as they are until release(). `pin["name"]` is a read-only view of this rank's buffer, a
    memoryview, or an object with __cuda_array_interface__ where slots are on a GPU. Made by Engine.acquire(); use it as a
    context manager, or release it. A view must not be used after that: its bytes change."""

    def __init__(self, engine, pin, borrowed=False):
        self._engine, self._pin, self._borrowed = engine, pin, borrowed

    @property
    def version(self):
        return self._pin.version

    @property
    def info(self):
        """Version, label and digest."""
        out = _c.Version()
        self._engine._library.refit_engine_version(self._engine._handle, ctypes.byref(self._pin), ctypes.byref(out))
        return _version(out)

    def address(self, name):
        """(address, bytes) of this rank's buffer."""
        library, handle = self._engine._library, self._engine._handle
        number = library.refit_engine_buffer_id(handle, name.encode())
        if number == _c.NO_BUFFER:
            raise KeyError(name)
        return (library.refit_engine_buffer(handle, ctypes.byref(self._pin), number),
                library.refit_engine_buffer_bytes(handle, number))

    def __getitem__(self, name):
        library, handle = self._engine._library, self._engine._handle
        on_device = library.refit_engine_pin_memory(handle, ctypes.byref(self._pin)) == _c.CUDA
        return (memory.OnDevice if on_device else memory.view)(*self.address(name), self._engine)

    def release(self):
        """Once; a second call does nothing, nor does that of a hook's pin, which ends with the hook."""
        pin, self._pin = self._pin, None
        if pin is not None and not self._borrowed:
            self._engine._library.refit_engine_release(self._engine._handle, ctypes.byref(pin))

    def release_on_stream(self, stream):
        """When the work that is queued so far on a stream of CUDA (its handle; 0: the default one) has ended."""
        check(self._engine._library, "refit_engine_release_on_stream", self._engine._handle, ctypes.byref(self._pin), stream)
        self._pin = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()


class Engine:
    """One rank of a replica, attached to refitd. Use it as a context manager, or detach it, after all pins are released.

    Hooks run on a thread of the library, one at a time:
    prepare(version, pin)      the version is verified and not served yet; an exception refuses it, with its text as the reason
    before_swap(version, kv)   an exception refuses the swap
    after_swap(version, kv)    what is served now"""

    def __init__(self, socket_path, layout, *, rank=0, ranks=1, label=None, timeout_ms=60000, prepare=None, before_swap=None,
                 after_swap=None, stable_addresses=False, memory="host"):
        self._library = _c.engine()
        self._rank = rank
        self._handle = ctypes.c_void_p()
        self._hooks = (self._prepare_function(prepare), self._before_function(before_swap), self._after_function(after_swap))
        text = _layout_text(layout)
        config = _c.EngineConfig(socket_path=_c.text(socket_path), rank=rank, ranks=ranks, label=_c.text(label), layout=text,
                                 layout_len=len(text), prepare=self._hooks[0], before_swap=self._hooks[1], after_swap=self._hooks[2],
                                 stable_addresses=stable_addresses, memory=("host", "cuda", "any").index(memory))
        check(self._library, "refit_engine_attach", ctypes.byref(config), timeout_ms, ctypes.byref(self._handle))

    @property
    def device(self):
        """Number of the GPU whose memory the buffers are in; None: the host's."""
        info = _c.MemoryInfo()
        self._library.refit_engine_memory(self._handle, ctypes.byref(info))
        return info.device if info.kind == _c.CUDA else None

    def detach(self):
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            self._library.refit_engine_detach(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.detach()

    def wait(self, timeout_ms=60000):
        """Until a version is served."""
        check(self._library, "refit_engine_wait", self._handle, timeout_ms)

    def acquire(self, version=_c.LATEST):
        """A Pin on the version served now (rank 0), or on a given one (the others, told by rank 0)."""
        pin = _c.Pin()
        status = self._library.refit_engine_acquire(self._handle, version, ctypes.byref(pin))
        if status != 0:
            what = f"version {version}" if version else "the version served"
            if not version and self._rank != 0:
                what = f"rank {self._rank} must name the version, which rank 0 tells it (acquire(pin.version)): " + what
            raise of(self._library, status, f"{what} was not acquired".encode())
        return Pin(self, pin)

    def __len__(self):
        return self._library.refit_engine_buffer_count(self._handle)

    def _prepare_function(self, hook):
        if hook is None:
            return _c.PREPARE()

        def call(_, handle, version, pin, reason):
            self._handle = ctypes.c_void_p(handle)  # attach may not have returned yet
            return _refusal(reason, hook, _version(version[0]), Pin(self, pin[0], borrowed=True))

        return _c.PREPARE(call)

    @staticmethod
    def _before_function(hook):
        if hook is None:
            return _c.BEFORE_SWAP()
        return _c.BEFORE_SWAP(lambda _, version, kv: _refusal(None, hook, _version(version[0]), kv.decode()))

    @staticmethod
    def _after_function(hook):
        if hook is None:
            return _c.AFTER_SWAP()
        return _c.AFTER_SWAP(lambda _, version, kv: hook(_version(version[0]), kv.decode()))


def _refusal(reason, hook, *arguments):
    """0, or 1 with the exception's text: a callback of C can't raise."""
    try:
        hook(*arguments)
        return 0
    except BaseException as why:
        text = f"{type(why).__name__}: {why}".encode()[:255]
        if reason:
            ctypes.memmove(reason, text + b"\0", len(text) + 1)
        return 1
