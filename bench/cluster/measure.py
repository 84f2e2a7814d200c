# SPDX-License-Identifier: Apache-2.0
"""What is read off the machine while programs run: idle CPU, goodput of a link, bytes on links."""
import threading
import time
from dataclasses import dataclass

IDLE_MIN = 0.15  # below, the CPU may be what was measured: the run is void


class Cpu(threading.Thread):
    """Samples /proc/stat; idle(begin, end) is the idle share between two times of the monotonic clock."""

    def __init__(self, interval=0.05):
        super().__init__(daemon=True)
        self.interval = interval
        self.samples = []
        self.ending = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.join()

    def run(self):
        while True:
            with open("/proc/stat") as file:
                ticks = [int(field) for field in file.readline().split()[1:9]]
            self.samples.append((time.monotonic(), ticks[3] + ticks[4], sum(ticks)))
            if self.ending.wait(self.interval):
                return

    def idle(self, begin, end):
        samples = list(self.samples)
        first = max((s for s in samples if s[0] <= begin), default=samples[0])
        last = min((s for s in samples if s[0] >= end), default=samples[-1])
        total = last[2] - first[2]
        return (last[1] - first[1]) / total if total else 1.0


@dataclass(frozen=True)
class Link:
    """What one socket gets out of a link, and what the kernel counts for it beside the payload."""
    goodput: float     # payload bytes per second
    header: float      # bytes counted in the data's direction per byte of payload, less 1
    answer: float      # bytes counted in the other direction per byte of payload (acknowledgements)
    share: float       # of the configured rate

    def payload(self, sent, received):
        """Payload that a node sent, from its link's two counters: header and acknowledgements are taken off."""
        return max(0.0, (sent - self.answer * received / (1 + self.header)) / (1 + self.header))


def goodput(box, sender, receiver, rate, tries=3):
    """One socket from `sender` to `receiver`, `rate` bits per second configured: the best of some tries, since what others make it wait
    for is no property of the link."""
    return max((_goodput(box, sender, receiver, rate, 0.5) for _ in range(tries)), key=lambda link: link.goodput)


def _goodput(box, sender, receiver, rate, seconds):
    listener = box.socket(receiver)
    listener.bind((box.address(receiver), 0))
    listener.listen(1)
    outgoing = box.socket(sender)
    before = box.counters()[sender]
    wanted = int(rate / 8 * (seconds + 0.2))

    def send():
        piece = bytes(1 << 18)
        with outgoing:
            outgoing.connect(listener.getsockname())
            left = wanted
            while left > 0:
                left -= outgoing.send(piece[:min(left, len(piece))])

    thread = threading.Thread(target=send)
    thread.start()
    try:
        speed = _receive(listener.accept()[0], int(rate / 8 * 0.2))
    finally:
        thread.join()
        listener.close()
    sent, received = (after - b for after, b in zip(box.counters()[sender], before))
    return Link(speed, sent / wanted - 1, received / wanted, speed * 8 / rate)


def _receive(connection, skipped):
    """Bytes per second after the first `skipped`, in which the bucket's burst and slow start are."""
    buffer = bytearray(1 << 20)
    total, begin, at_begin = 0, None, 0
    with connection:
        while True:
            count = connection.recv_into(buffer)
            if count == 0:
                break
            total += count
            now = time.monotonic()
            if begin is None and total >= skipped:
                begin, at_begin = now, total
            last = now
    return (total - at_begin) / (last - begin)


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
