# SPDX-License-Identifier: Apache-2.0
"""A trainer rank that publishes: <refit/sender.h>."""
import ctypes
import dataclasses
import json
import os
from typing import List, Optional

from refit import _c, memory
from refit.errors import Error, check, of


@dataclasses.dataclass(frozen=True)
class ReplicaReport:
    """What became of one replica (struct refit_replica_report)."""
    url: str
    replica: int
    outcome: str
    error: Optional[Error]
    refit_id: str
    digest: str
    transport: str
    bytes_needed: int
    bytes_moved: int
    bytes_sent: int
    bytes_saved: int
    bytes_excess: int
    wire_bytes: int
    seconds: float
    plan_s: float
    wait_readers_s: float
    transfer_s: float
    verify_s: float
    prepare_s: float
    staged_s: float
    swap_s: float


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of a publish (struct refit_report). `action` says what to do about it."""
    version: int
    digest: str
    outcome: str
    action: str
    membership_epoch: int
    relayed: bool
    bytes_sent: int
    bytes_saved: int
    bytes_excess: int
    sources_free_s: float
    seconds: float
    replicas: List[ReplicaReport]


def _plain(value):
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _fields(cls, struct, **given):
    names = (field.name for field in dataclasses.fields(cls) if field.name not in given)
    return cls(**{name: _plain(getattr(struct, name)) for name in names}, **given)


def _layout_text(layout):
    return layout if isinstance(layout, bytes) else (layout if isinstance(layout, str) else json.dumps(layout)).encode()


class Sender:
    """One rank of the mesh; rank 0 leads and names the replicas. One thread at a time; use it as a context manager, or close it.

    Every rank makes the same calls in the same order: register once, publish for each version."""

    def __init__(self, rank=0, ranks=1, *, lead_address=None, replicas=(), members=None, name=None, takeover=False, streams=0,
                 transport=None, connect_timeout_ms=0, cacert=None, cert=None, key=None, token_file=None,
                 insecure_plaintext_tokens=False, job_secret_file=None):
        self._library = _c.sender()
        self._handle = ctypes.c_void_p()
        self._keep, self._gather, self._progress, self._raised = [], None, None, None
        urls = _c.texts(replicas)
        config = _c.SenderConfig(
            rank=rank, ranks=ranks, lead_address=_c.text(lead_address), replicas=urls, replica_count=len(replicas),
            members=_c.text(members), name=_c.text(name), takeover=takeover, streams=streams, transport=_c.text(transport),
            connect_timeout_ms=connect_timeout_ms, cacert=_c.text(cacert), cert=_c.text(cert), key=_c.text(key),
            token_file=_c.text(token_file), insecure_plaintext_tokens=insecure_plaintext_tokens,
            job_secret_file=_c.text(job_secret_file))
        check(self._library, "refit_sender_open", ctypes.byref(config), ctypes.byref(self._handle))

    def close(self):
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            self._library.refit_sender_close(handle)
        self._keep.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def alloc(self, length):
        """Writable memory that replicas on this host take without a copy. Gone after close()."""
        address = ctypes.c_void_p()
        check(self._library, "refit_sender_alloc", self._handle, length, ctypes.byref(address))
        return memoryview((ctypes.c_ubyte * length).from_address(address.value)).cast("B")

    def register(self, layout, buffers):
        """`layout`: a dict or JSON text (docs/layouts.md), of the whole mesh or of this rank. `buffers`: name -> torch tensor, numpy
        array, writable buffer, (address, bytes), or (address, bytes, GPU's number). They are kept until close or the next register.
        What a GPU's streams write must be done, not queued, when a publish begins."""
        text = _layout_text(layout)
        spans = {name: memory.span(value) for name, value in buffers.items()}
        items = (_c.SenderBuffer * len(spans))(
            *(_c.SenderBuffer(name=name.encode(), data=span.address, bytes=span.length,
                              memory=_c.HOST if span.device is None else _c.CUDA, device=span.device or 0)
              for name, span in spans.items()))
        check(self._library, "refit_sender_register", self._handle, text, len(text), items, len(spans))
        self._keep = [span.keep for span in spans.values()]

    def register_checkpoint(self, path):
        """A safetensors file or directory in place of memory; with one rank."""
        check(self._library, "refit_sender_register_checkpoint", self._handle, os.fsencode(path))
        self._keep = []

    def register_gather(self, tensors, gather):
        """`tensors`: (name, dtype, shape) each. `gather(name, destination)` fills a writable memoryview with the whole tensor; an
        exception ends the publish and is raised by it."""
        shapes = [(ctypes.c_int64 * len(shape))(*shape) for _, _, shape in tensors]
        items = (_c.SenderTensor * len(tensors))(
            *(_c.SenderTensor(name=name.encode(), dtype=dtype.encode(), shape=dims, dims=len(shape))
              for (name, dtype, shape), dims in zip(tensors, shapes)))

        def call(_, name, destination, length):
            try:
                gather(name.decode(), memoryview((ctypes.c_ubyte * length).from_address(destination)).cast("B"))
                return 0
            except BaseException as why:  # a callback of C can't raise
                self._raised = why
                return 1

        function = _c.GATHER(call)
        check(self._library, "refit_sender_register_gather", self._handle, items, len(tensors), function, None)
        self._gather, self._keep = function, []

    def publish(self, version, **options):
        """begin(), wait_sources_free() and wait_report() in one."""
        self.begin(version, **options)
        return self.wait_report()

    def begin(self, version, *, label=None, kv=None, deadline_ms=0, check_source=False, stage_only=False, progress=None, policy=None,
              strategy=None, unchanged_since=0, unchanged=(), resume=False):
        """From here on the memory stays as it is until wait_sources_free() has returned. `progress(list of (url, phase, done, due))`
        is called while wait_report() runs, on rank 0."""
        names = _c.texts(unchanged)
        self._raised, self._progress = None, self._progress_function(progress)
        publish = _c.Publish(version=version, label=_c.text(label), kv=_c.text(kv), deadline_ms=deadline_ms,
                             check_source=check_source, stage_only=stage_only, progress=self._progress, policy=_c.text(policy),
                             strategy=_c.text(strategy), unchanged_since=unchanged_since, unchanged=names,
                             unchanged_count=len(unchanged), resume=resume)
        self._call("refit_sender_publish_begin", ctypes.byref(publish))

    def wait_sources_free(self):
        """Until no replica reads this rank's memory any more: training may write again."""
        self._call("refit_sender_publish_wait_sources_free")

    def wait_report(self):
        """The report; an Error with the report as its `report` when not all of the replicas, or of the quorum, committed."""
        report = _c.Report()
        try:
            self._call("refit_sender_publish_wait_report", ctypes.byref(report))
        except Error as why:
            why.report = self._report(report)
            raise
        return self._report(report)

    def _call(self, function, *arguments):
        try:
            check(self._library, function, self._handle, *arguments)
        except Error as why:
            raised, self._raised = self._raised, None
            if raised is not None:
                raise raised from why
            raise
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def _progress_function(self, progress):
        if progress is None:
            return _c.PROGRESS()

        def call(_, replicas, count):
            try:
                progress([(r.url.decode(), r.phase.decode(), r.bytes_done, r.bytes_due) for r in replicas[:count]])
            except BaseException as why:  # raised when the publish has ended
                self._raised = why

        return _c.PROGRESS(call)

    def _report(self, report):
        replicas = [_fields(ReplicaReport, r, outcome=self._library.refit_outcome_name(r.outcome).decode(),
                            error=of(self._library, r.error.status, r.error.text) if r.error.status else None)
                    for r in report.replicas[:report.replica_count]]
        return _fields(Report, report, outcome=self._library.refit_fleet_outcome_name(report.outcome).decode(),
                       action=self._library.refit_fleet_outcome_action(report.outcome).decode(),
                       relayed=bool(report.relayed), replicas=replicas)
