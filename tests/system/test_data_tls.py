# SPDX-License-Identifier: Apache-2.0
"""Bulk bytes over TLS between trainers, replicas and each other: whole refits, and who is told what when it can't be."""
import os
import re
import signal
import socket
import ssl
import unittest

import pki
from harness import WAIT_S, engine_layout, source_layout
from test_fleet import BYTES
from test_policies import SLOW
from test_security import SecurityTest


class DataTls(SecurityTest):
    def setUp(self):
        super().setUp()
        client, key = self.pki.pair("client")
        self.trust(cacert=self.ca, cert=client, key=key)

    def member(self, name, *options, layout=None, near=False):
        """One that is reached over tcp only, by the trainer and by its siblings; `near`: over its Unix socket, too."""
        replica = self.secure(name, "--tls-client-ca", self.ca, *options, layout=layout, readers=True)
        if not near:
            os.remove(replica.socket + ".data")
        return replica

    def go(self, members, version, *options, wait=True):
        return self.publish(source_layout(), [version], members, "transport=tcp", *options, wait=wait)

    def sent(self, lines):
        fleet = next(line for line in lines if line.startswith("fleet")).split(" ")
        self.assertEqual((fleet[1], fleet[6]), ("committed", "relayed"), lines)
        return int(fleet[3]) - int(fleet[4])

    def expiry(self, replica):
        """By listener."""
        found = re.findall(r'refit_tls_certificate_expiry_timestamp_seconds\{listener="(\w+)"\} (\d+)',
                           replica.admin("/metrics")[1])
        return {listener: int(seconds) for listener, seconds in found}

    def data(self, replica, **settings):
        tls = pki.context(self.ca, self.pki.pair("client"), **settings)
        with socket.create_connection(("127.0.0.1", replica.ports["data"]), WAIT_S) as plain, \
                tls.wrap_socket(plain, server_hostname="127.0.0.1") as stream:
            return stream.version(), dict(pair[0] for pair in stream.getpeercert()["subject"])["commonName"]

    def test_a_fleet_refits_over_tls_from_end_to_end(self):
        members = [self.member(f"m{i}") for i in range(3)] + [self.member("tp2", near=True, layout=engine_layout(2))]
        for version in (1, 2):
            lines = self.go(members, version, "strategy=relay")
            self.assertTrue(lines[0].startswith(f"ok {version} "), lines)
            self.assertEqual(self.sent(lines), BYTES)
        self.assertEqual(len({member.weights()["active"]["digest"] for member in members}), 1)
        for member in members:
            member.wait_step(2)

    def test_a_broadcast_goes_over_tls(self):
        members = [self.member("m"), self.member("tp2", layout=engine_layout(2))]
        lines = self.go(members, 1, "strategy=broadcast", "check")
        self.assertTrue(lines[0].startswith("ok 1 "), lines)
        for member in members:
            member.wait_step(1)

    def test_a_joiner_is_served_over_tls(self):
        member = self.member("m")
        self.assertTrue(self.go([member], 1)[0].startswith("ok 1 "))
        cert, key = self.pki.pair("client")
        joiner = self.member("joiner", "--siblings", member.url, "--siblings-poll", "200ms", "--siblings-cacert", self.ca,
                             "--siblings-cert", cert, "--siblings-key", key)
        joiner.wait_step(1)
        self.assertEqual(joiner.weights()["active"]["digest"], member.weights()["active"]["digest"])

    def test_a_joiner_finds_asks_and_is_served_by_names_alone(self):
        """No certificate of the sibling holds an address, nor does that of the joiner's data port."""
        cert, key = self.pki.leaf("by-name", san="DNS:localhost")
        data, data_key = self.pki.leaf("pool", san="DNS:pool.example")
        named = ("--tls-client-ca", self.ca, "--data-tls-cert", data, "--data-tls-key", data_key, "--data-tls-name", "pool.example")
        member = self.replica("m", engine_layout(1), "--tls-cert", cert, "--tls-key", key, *named)
        os.remove(member.socket + ".data")
        seed = f"dns:https://localhost:{member.control_port}"
        committed = f"replica https://127.0.0.1:{member.control_port}#localhost committed"
        self.assertIn(committed, "\n".join(self.go([seed], 1)))  # where it is ::1, too, that one is nobody's
        cert, key = self.pki.pair("client")
        joiner = self.member("joiner", *named[2:], "--siblings", seed, "--siblings-poll", "200ms",
                             "--siblings-cacert", self.ca, "--siblings-cert", cert, "--siblings-key", key)
        joiner.wait_step(1)
        self.assertIn(committed, "\n".join(self.go([seed], 2)))
        joiner.wait_step(2)  # missed, and fetched
        member.wait_step(2)

    def test_the_data_port_speaks_nothing_but_tls_1_3_with_its_clients(self):
        member = self.member("m")
        self.assertEqual(self.data(member)[0], "TLSv1.3")
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            self.data(member, maximum_version=ssl.TLSVersion.TLSv1_2)
        self.assertIn(b"this port demands TLS", pki.raw(member.ports["data"], b"RFIT" + bytes(400)))
        # With TLS 1.3 the server's refusal of a client comes after the client's handshake.
        got = pki.raw(member.ports["data"], b"RFIT" + bytes(400), pki.context(self.ca))
        self.assertEqual(got, b"")
        self.wait_log(member, "a client certificate is demanded here")

    def test_a_trainer_is_told_what_is_wrong_with_a_certificate(self):
        self.pki.ca("other")
        cert, key = self.pki.leaf("foreign", ca="other")
        member = self.member("m", "--data-tls-cert", cert, "--data-tls-key", key)
        lines = self.go([member], 1, "deadline=4000")
        self.assertTrue(lines[0].startswith("failed 1 "), lines)
        self.assertTrue(any("no CA in the bundle here signed it" in line for line in lines), lines)
        named = self.member("named", "--data-tls-name", "replica.example")
        lines = self.go([named], 1, "deadline=4000")
        self.assertTrue(any("subject alternative names" in line for line in lines), lines)
        self.assertIsNone(member.active())

    def test_the_name_in_the_certificate_may_be_another_than_the_address(self):
        cert, key = self.pki.leaf("named", san="DNS:pool.example")
        members = [self.member(f"m{i}", "--data-tls-cert", cert, "--data-tls-key", key, "--data-tls-name", "pool.example")
                   for i in range(2)]
        lines = self.go(members, 1, "strategy=relay")
        self.assertTrue(lines[0].startswith("ok 1 "), lines)
        self.assertEqual(self.sent(lines), BYTES)

    def test_tls_of_bulk_bytes_is_off_by_name_only(self):
        member = self.member("off", "--data-tls", "off")
        lines = self.go([member], 1)
        self.assertTrue(lines[0].startswith("ok 1 "), lines)
        self.assertNotIn(b"demands TLS", pki.raw(member.ports["data"], b"RFIT" + bytes(400)))

    def test_a_rotation_in_the_middle_of_a_transfer_disturbs_nothing(self):
        live = pki.Mount(self.path("live"), {"tls.crt": self.pki.path("server.pem"), "tls.key": self.pki.path("server.key")})
        member = self.member("m", "--data-tls-cert", live.path("tls.crt"), "--data-tls-key", live.path("tls.key"), *SLOW)
        self.assertEqual(self.data(member)[1], "server")
        before = self.expiry(member)
        self.assertEqual(before["control"], before["data"])
        ranks = self.go([member], 1, wait=False)
        member.wait_session(lambda state: state["version"] == 1 and state["bytes_done"] > 0)
        cert, key = self.pki.leaf("renewed", valid=(-3600, 2 * 86400))
        live.swap({"tls.crt": cert, "tls.key": key})
        member.refitd.kill(signal.SIGHUP)
        self.wait_log(member, "use=data")
        self.assertEqual(self.data(member)[1], "renewed")
        after = self.expiry(member)
        self.assertEqual(after["control"], before["control"])
        self.assertGreater(after["data"], before["data"] + 80000)
        for rank in ranks:
            rank.wait()
        self.assertTrue(ranks[0].lines[0].startswith("ok 1 "), ranks[0].lines)
        self.assertTrue(self.go([member], 2)[0].startswith("ok 2 "))

    def test_replicas_behind_a_name_are_found_over_https(self):
        cert, key = self.pki.leaf("by-name", san="DNS:localhost")
        replica = self.replica("m", engine_layout(1), "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", self.ca,
                               "--data-tls-name", "localhost")
        code, text = self.cli("status", f"https://127.0.0.1:{replica.control_port}")
        self.assertEqual(code, 1, text)
        self.assertIn("subject alternative names", text)
        lines = self.go([f"dns:https://localhost:{replica.control_port}"], 1)  # where it is ::1, too, that one is nobody's
        self.assertIn(f"replica https://127.0.0.1:{replica.control_port}#localhost committed", "\n".join(lines))


if __name__ == "__main__":
    unittest.main()
