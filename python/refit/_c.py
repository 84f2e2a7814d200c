# SPDX-License-Identifier: Apache-2.0
"""The C interface as it is: structures, functions and where the libraries are found. tests/python compares each structure
with its header."""
import ctypes
import ctypes.util
import functools
import os
from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint, c_uint8, c_uint32, c_uint64, c_void_p

ERROR_TEXT_MAX = 768
LATEST = 0
NO_BUFFER = 0xFFFFFFFF


class Error(ctypes.Structure):
    _fields_ = [("status", c_int), ("text", c_char * ERROR_TEXT_MAX)]


class SenderConfig(ctypes.Structure):
    _fields_ = [("rank", c_uint32), ("ranks", c_uint32), ("lead_address", c_char_p), ("replicas", POINTER(c_char_p)),
                ("replica_count", c_size_t), ("members", c_char_p), ("name", c_char_p), ("takeover", c_int), ("streams", c_uint),
                ("transport", c_char_p), ("connect_timeout_ms", c_int64), ("cacert", c_char_p), ("cert", c_char_p),
                ("key", c_char_p), ("token_file", c_char_p), ("insecure_plaintext_tokens", c_int),
                ("job_secret_file", c_char_p)]


class SenderBuffer(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("data", c_void_p), ("bytes", c_size_t), ("memory", c_int), ("device", c_int)]


class SenderTensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("shape", POINTER(c_int64)), ("dims", c_size_t)]


class ReplicaProgress(ctypes.Structure):
    _fields_ = [("url", c_char_p), ("phase", c_char_p), ("bytes_done", c_uint64), ("bytes_due", c_uint64)]


PROGRESS = ctypes.CFUNCTYPE(None, c_void_p, POINTER(ReplicaProgress), c_size_t)
GATHER = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)


class Publish(ctypes.Structure):
    _fields_ = [("version", c_uint64), ("label", c_char_p), ("kv", c_char_p), ("deadline_ms", c_int64), ("check_source", c_int),
                ("stage_only", c_int), ("progress", PROGRESS), ("progress_context", c_void_p), ("policy", c_char_p),
                ("strategy", c_char_p), ("unchanged_since", c_uint64), ("unchanged", POINTER(c_char_p)),
                ("unchanged_count", c_size_t), ("resume", c_int)]


class ReplicaReport(ctypes.Structure):
    _fields_ = [("url", c_char * 256), ("replica", c_uint32), ("outcome", c_int), ("error", Error), ("refit_id", c_char * 64),
                ("digest", c_char * 65), ("transport", c_char * 16), ("bytes_needed", c_uint64), ("bytes_moved", c_uint64),
                ("bytes_sent", c_uint64), ("bytes_saved", c_uint64), ("bytes_excess", c_uint64), ("wire_bytes", c_uint64),
                ("seconds", c_double), ("plan_s", c_double), ("wait_readers_s", c_double), ("transfer_s", c_double),
                ("verify_s", c_double), ("prepare_s", c_double), ("staged_s", c_double), ("swap_s", c_double)]


class Report(ctypes.Structure):
    _fields_ = [("version", c_uint64), ("digest", c_char * 65), ("outcome", c_int), ("membership_epoch", c_uint64),
                ("relayed", c_int), ("bytes_sent", c_uint64), ("bytes_saved", c_uint64), ("bytes_excess", c_uint64),
                ("sources_free_s", c_double), ("seconds", c_double), ("replica_count", c_size_t),
                ("replicas", POINTER(ReplicaReport))]


class Version(ctypes.Structure):
    _fields_ = [("version", c_uint64), ("label", c_char * 64), ("digest", c_char * 65)]


class Pin(ctypes.Structure):
    _fields_ = [("version", c_uint64), ("slot", c_uint32)]


PREPARE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(Version), POINTER(Pin), POINTER(c_char))
BEFORE_SWAP = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(Version), c_char_p)
AFTER_SWAP = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Version), c_char_p)


class EngineConfig(ctypes.Structure):
    _fields_ = [("socket_path", c_char_p), ("rank", c_uint32), ("ranks", c_uint32), ("label", c_char_p), ("layout", c_char_p),
                ("layout_len", c_size_t), ("prepare", PREPARE), ("before_swap", BEFORE_SWAP), ("after_swap", AFTER_SWAP),
                ("context", c_void_p), ("stable_addresses", c_int), ("memory", c_int)]


class MemoryInfo(ctypes.Structure):
    _fields_ = [("kind", c_int), ("device", c_int), ("uuid", c_uint8 * 16), ("granularity", c_uint64), ("slot_bytes", c_uint64)]


HOST, CUDA, ANY = range(3)  # enum refit_memory_kind; the first two are enum refit_sender_memory, too
SENDER = {
    "refit_status_name": (c_char_p, c_int),
    "refit_status_action": (c_char_p, c_int),
    "refit_outcome_name": (c_char_p, c_int),
    "refit_fleet_outcome_name": (c_char_p, c_int),
    "refit_fleet_outcome_action": (c_char_p, c_int),
    "refit_sender_open": (c_int, POINTER(SenderConfig), POINTER(c_void_p), POINTER(Error)),
    "refit_sender_close": (None, c_void_p),
    "refit_sender_alloc": (c_int, c_void_p, c_size_t, POINTER(c_void_p), POINTER(Error)),
    "refit_sender_register": (c_int, c_void_p, c_char_p, c_size_t, POINTER(SenderBuffer), c_size_t, POINTER(Error)),
    "refit_sender_register_checkpoint": (c_int, c_void_p, c_char_p, POINTER(Error)),
    "refit_sender_register_gather": (c_int, c_void_p, POINTER(SenderTensor), c_size_t, GATHER, c_void_p, POINTER(Error)),
    "refit_sender_publish_begin": (c_int, c_void_p, POINTER(Publish), POINTER(Error)),
    "refit_sender_publish_wait_sources_free": (c_int, c_void_p, POINTER(Error)),
    "refit_sender_publish_wait_report": (c_int, c_void_p, POINTER(Report), POINTER(Error)),
}

ENGINE = {
    "refit_status_name": (c_char_p, c_int),
    "refit_status_action": (c_char_p, c_int),
    "refit_engine_attach": (c_int, POINTER(EngineConfig), c_int64, POINTER(c_void_p), POINTER(Error)),
    "refit_engine_detach": (None, c_void_p),
    "refit_engine_wait": (c_int, c_void_p, c_int64, POINTER(Error)),
    "refit_engine_acquire": (c_int, c_void_p, c_uint64, POINTER(Pin)),
    "refit_engine_release": (None, c_void_p, POINTER(Pin)),
    "refit_engine_release_on_stream": (c_int, c_void_p, POINTER(Pin), c_void_p, POINTER(Error)),
    "refit_engine_memory": (None, c_void_p, POINTER(MemoryInfo)),
    "refit_engine_pin_memory": (c_int, c_void_p, POINTER(Pin)),
    "refit_engine_buffer_id": (c_uint32, c_void_p, c_char_p),
    "refit_engine_buffer_count": (c_uint32, c_void_p),
    "refit_engine_buffer_bytes": (c_size_t, c_void_p, c_uint32),
    "refit_engine_buffer": (c_void_p, c_void_p, POINTER(Pin), c_uint32),
    "refit_engine_version": (None, c_void_p, POINTER(Pin), POINTER(Version)),
}


def _find(name):
    """In REFIT_LIBRARY_DIR (several, as in PATH), else where the loader looks."""
    for directory in filter(None, os.environ.get("REFIT_LIBRARY_DIR", "").split(os.pathsep)):
        path = os.path.join(directory, f"lib{name}.so")
        if os.path.exists(path):
            return path
    return ctypes.util.find_library(name) or f"lib{name}.so.0"


@functools.lru_cache(maxsize=None)
def _load(name):
    functions = {"refit-sender": SENDER, "refit-engine": ENGINE}[name]
    try:
        library = ctypes.CDLL(_find(name))
    except OSError as why:
        raise ImportError(f"lib{name}.so was not loaded ({why}); install Refit, or name the directory of its libraries in "
                          "REFIT_LIBRARY_DIR") from why
    for function, (result, *arguments) in functions.items():
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    return library


def sender():
    return _load("refit-sender")


def engine():
    return _load("refit-engine")


def text(value):
    """A str or None as C takes it."""
    return None if value is None else os.fspath(value).encode()


def texts(values):
    return (c_char_p * len(values))(*(text(value) for value in values))
