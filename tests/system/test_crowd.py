# SPDX-License-Identifier: Apache-2.0
"""A thousand idle and a hundred slow connections, on both HTTP listeners, hold up neither a refit nor a probe."""
import re
import resource
import selectors
import socket
import threading
import time
import unittest

from harness import WAIT_S, SystemTest, engine_layout, source_layout

IDLE, SLOW = 1000, 100
HEAD = b"POST /refit HTTP/1.1\r\nHost: a\r\nX-Slow: " + b"a" * 2000
BODY = b"POST /refit HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n" + b" " * 2000


class Crowd(threading.Thread):
    """Keeps its connections open, opens those again that were closed (some at a time), and sends a byte now and then on the
    slow ones."""

    def __init__(self, port, idle, slow):
        super().__init__(daemon=True)
        self.port, self.idle, self.slow = port, idle, slow
        self.ending, self.all_open = threading.Event(), threading.Event()
        self.opened = self.opened_idle = self.sent = 0
        self.closed = []
        self.selector = selectors.DefaultSelector()

    def open(self, text):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", self.port))
        # What is sent so far of what; None: nothing ever.
        self.selector.register(connection, selectors.EVENT_READ, [text, 0])
        self.opened += 1
        self.opened_idle += text is None

    def run(self):
        for i in range(self.idle + self.slow):
            self.open(None if i >= self.slow else HEAD if i % 2 else BODY)
            if i % 100 == 99:
                self.turn(0.01)  # within what a listener's queue takes
        self.all_open.set()
        while not self.ending.is_set():
            self.turn(0.05)
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()

    def turn(self, seconds):
        for text in self.closed[:20]:
            self.open(text)
        del self.closed[:20]
        for key, _ in self.selector.select(seconds):
            self.hear(key.fileobj, key.data)
        for key in list(self.selector.get_map().values()):
            text, at = key.data
            if text and at < len(text):
                try:
                    key.data[1] += key.fileobj.send(text[at:at + 1])
                    self.sent += 1
                except OSError:
                    pass  # not connected yet, or closed: the next turn hears it

    def hear(self, connection, data):
        try:
            gone = not connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            self.selector.unregister(connection)
            connection.close()
            self.closed.append(data[0])

    def end(self):
        self.ending.set()
        self.join(WAIT_S)


class Crowded(SystemTest):
    def setUp(self):
        super().setUp()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        need = 2 * (IDLE + SLOW) + 200
        if hard < need:
            self.skipTest(f"{need} descriptors are needed, {hard} are allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, need), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

    def crowd(self, port):
        crowd = Crowd(port, IDLE, SLOW)
        crowd.start()
        self.addCleanup(crowd.end)
        self.assertTrue(crowd.all_open.wait(WAIT_S))
        return crowd

    def refits_amid(self, connections, *options):
        replica = self.replica("a", engine_layout(2), *options)
        crowds = [self.crowd(replica.control_port), self.crowd(replica.ports["admin"])]
        self.wait_connections(replica, connections)
        for version in (1, 2, 3):
            lines = self.publish(source_layout(), [version], [replica])
            self.assertTrue(lines and lines[0].startswith(f"ok {version} "), lines)
            replica.wait_step(version)
            for probe in ("/livez", "/startupz", "/readyz"):
                self.assertEqual(replica.admin(probe)[0], 200, probe)
            self.assertIn(f"\nrefit_version {version}\n", replica.admin("/metrics")[1])
        self.assertTrue(all(crowd.is_alive() and crowd.sent > SLOW for crowd in crowds))
        return replica, crowds

    def connections(self, replica, listener):
        text = replica.admin("/metrics")[1]
        return int(re.search(rf'^refit_http_connections{{listener="{listener}"}} (\d+)$', text, re.M).group(1))

    def wait_connections(self, replica, least):
        deadline = time.monotonic() + WAIT_S
        while min(self.connections(replica, "control"), self.connections(replica, "admin")) < least:
            self.assertLess(time.monotonic(), deadline, "the crowd did not get in")
            time.sleep(0.01)

    def test_with_the_default_limits_the_oldest_idle_ones_make_room(self):
        replica, crowds = self.refits_amid(60)
        self.assertTrue(all(crowd.opened > IDLE + SLOW for crowd in crowds))

    def test_with_room_for_all_of_them_they_stay(self):
        replica, crowds = self.refits_amid(IDLE + SLOW, "--control-connections", "2000", "--admin-connections", "2000")
        # Slow ones are opened again where their head is whole, after some seconds, and such a request is refused.
        self.wait_connections(replica, IDLE + SLOW)
        self.assertEqual([crowd.opened_idle for crowd in crowds], [IDLE] * 2)


if __name__ == "__main__":
    unittest.main()
