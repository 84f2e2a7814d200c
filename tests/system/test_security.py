# SPDX-License-Identifier: Apache-2.0
"""Who gets in, who does not, and that neither a rotation nor a crowd at the door ends a refit."""
import http.client
import os
import resource
import signal
import socket
import ssl
import subprocess
import time
import unittest

import pki
from harness import WAIT_S, Replica, SystemTest, engine_layout, source_layout, tool

READER, TRAINER, ADMIN = "reader-0123456789", "trainer-0123456789", "admin-0123456789"
TOKENS = f"# by hand\nread:{READER}\nrefit:ci:{TRAINER}\nadmin:{ADMIN}\n"


class SecurityTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.pki = pki.Pki(self.path("pki"))
        self.ca = self.pki.ca("ca")
        self.pki.leaf("server")
        self.pki.leaf("client", san="URI:spiffe://cluster/trainer")
        self.tokens = self.write("tokens", TOKENS)
        self.environment = {}

    def tearDown(self):
        for name in self.environment:
            del os.environ[name]
        super().tearDown()

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def trust(self, **files):
        """What publishers and the command line show, by the environment."""
        self.environment = {f"REFIT_{name.upper()}": path for name, path in files.items()}
        os.environ.update(self.environment)

    def options(self, *more, pair=None):
        cert, key = pair or self.pki.pair("server")
        return ["--tls-cert", cert, "--tls-key", key, *more]

    def secure(self, name, *more, readers=False, layout=None, **settings):
        replica = self.replica(name, layout or engine_layout(1), *self.options(*more), readers=readers, **settings)
        replica.__class__ = SecureReplica
        replica.ca, replica.client = self.ca, self.pki.pair("client")
        return replica

    def cli(self, *words):
        done = subprocess.run([tool("cli", "refit"), *words], capture_output=True, text=True, timeout=WAIT_S)
        return done.returncode, done.stdout + done.stderr

    def wait_log(self, replica, text, count=1):
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            log = self.log(replica)
            if log.count(text) >= count:
                return log
            time.sleep(0.02)
        raise AssertionError(f"{replica.name}: \"{text}\" was not logged {count} times")

    def log(self, replica):
        with open(self.path(f"refitd-{replica.name}.log"), errors="replace") as file:
            return file.read()


class SecureReplica(Replica):
    """The same calls over HTTPS, with a client certificate."""

    @property
    def url(self):
        return f"https://127.0.0.1:{self.control_port}"

    def call(self, method, path, body=None, port=None):
        if port:
            return super().call(method, path, body, port)
        return pki.call(self.control_port, pki.context(self.ca, self.client), method, path, body)[:2]


class Certificates(SecurityTest):
    def setUp(self):
        super().setUp()
        self.a = self.secure("a", "--tls-client-ca", self.ca)
        self.port = self.a.control_port

    def refused(self, tls, host="127.0.0.1"):
        with self.assertRaises((ssl.SSLError, ConnectionError, http.client.HTTPException)) as caught:
            pki.call(self.port, tls, "GET", "/v1/weights", host=host)
        return str(caught.exception)

    def test_a_client_of_the_ca_gets_in(self):
        self.assertEqual(pki.call(self.port, pki.context(self.ca, self.pki.pair("client")), "GET", "/v1/weights")[0], 200)

    def test_clients_that_are_not_are_refused_and_the_log_says_why(self):
        self.pki.ca("other")
        self.refused(pki.context(self.ca))
        self.wait_log(self.a, "a client certificate is demanded here")
        self.refused(pki.context(self.ca, self.pki.leaf("stranger", ca="other")))
        self.wait_log(self.a, "no CA in the bundle here signed it")
        self.refused(pki.context(self.ca, self.pki.leaf("late", valid=(-7200, -3600))))
        self.wait_log(self.a, "certificate has expired")
        self.refused(pki.context(self.ca, self.pki.leaf("early", valid=(3600, 7200))))
        self.wait_log(self.a, "certificate is not yet valid")
        self.assertEqual(self.a.admin("/livez")[0], 200)
        self.assertIn('refit_tls_handshakes_failed_total{listener="control"} 4', self.a.admin("/metrics")[1])

    def test_the_command_line_names_what_is_wrong_with_a_server(self):
        client, key = self.pki.pair("client")
        other = self.pki.ca("other")
        shown = ["--cert", client, "--key", key]
        code, text = self.cli("status", self.a.url, "--cacert", self.ca, *shown)
        self.assertEqual(code, 0, text)
        code, text = self.cli("status", self.a.url, "--cacert", other, *shown)
        self.assertEqual(code, 1, text)
        self.assertIn("check the CA file", text)
        code, text = self.cli("status", self.a.url, "--cacert", self.ca)
        self.assertEqual(code, 1, text)
        self.assertIn("it demands a certificate and got none", text)
        for name, san, valid, wanted in [("late", pki.NAMES, (-7200, -3600), "certificate has expired"),
                                         ("early", pki.NAMES, (3600, 7200), "not yet valid"),
                                         ("elsewhere", "DNS:other.example", (-60, 3600), "subject alternative names")]:
            pair = self.pki.leaf(name, san=san, valid=valid)
            replica = self.replica(name, engine_layout(1), *self.options(pair=pair), readers=False)
            code, text = self.cli("status", f"https://127.0.0.1:{replica.control_port}", "--cacert", self.ca)
            self.assertEqual(code, 1, text)
            self.assertIn(wanted, text)
        code, text = self.cli("status", f"https://127.0.0.1:{self.a.ports['admin']}", "--cacert", self.ca)
        self.assertIn("the peer does not speak TLS", text)

    def test_old_versions_and_weak_ciphers_are_refused(self):
        def old(**settings):
            tls = pki.context(self.ca, self.pki.pair("client"))
            tls.set_ciphers(settings.pop("ciphers", "ALL:@SECLEVEL=0"))
            for name, value in settings.items():
                setattr(tls, name, value)
            return tls
        tls12 = ssl.TLSVersion.TLSv1_2
        self.assertEqual(pki.call(self.port, old(maximum_version=tls12), "GET", "/v1/weights")[0], 200)
        self.refused(old(minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1))
        self.refused(old(ciphers="AES128-SHA:@SECLEVEL=0", maximum_version=tls12))
        self.refused(old(ciphers="ECDHE-ECDSA-AES256-SHA:@SECLEVEL=0", maximum_version=tls12))

    def test_wrong_files_of_a_client_are_named_before_anything_is_sent(self):
        client, key = self.pki.pair("client")
        for words, wanted in [(["--cacert", "/nonexistent.pem"], "TLS CA bundle: /nonexistent.pem"),
                              (["--cert", client], "belong together"), (["--cert", client, "--key", self.pki.path("ca.key")],
                                                                       "not the key of the certificate"),
                              (["--token-file", client], "expected a token"), (["--token-file"], "needs a value")]:
            code, text = self.cli("status", self.a.url, *words)
            self.assertEqual(code, 2, text)
            self.assertIn(wanted, text)

    def test_plain_http_on_the_tls_port_is_refused(self):
        self.assertEqual(pki.raw(self.port, b"GET /v1/weights HTTP/1.1\r\nHost: a\r\n\r\n")[:5], b"")
        self.wait_log(self.a, "plain HTTP came in on a TLS port")


class Tokens(SecurityTest):
    def setUp(self):
        super().setUp()
        self.audit = self.path("audit.log")
        self.a = self.secure("a", "--token-file", self.tokens, "--audit-log", self.audit)
        self.port, self.tls = self.a.control_port, pki.context(self.ca)

    def ask(self, method, path, body=None, token=None):
        return pki.call(self.port, self.tls, method, path, body, token)

    def test_each_role_may_do_what_the_table_says(self):
        wanted = [("GET", "/v1/weights", None, (401, 401, 200, 200, 200)),
                  ("GET", "/v1/host", None, (401, 401, 200, 200, 200)),
                  ("POST", "/v1/lead", {"name": "x", "takeover": True}, (401, 401, 403, 200, 200)),
                  ("POST", "/refit/none/abort", {}, (401, 401, 403, 404, 404)),
                  ("POST", "/rollback", {}, (401, 401, 403, 403, 404)),
                  ("POST", "/rollback", {"version": 1}, (401, 401, 403, 403, 404)),
                  # a lead takes back what it brought; what lasts is for admins
                  ("POST", "/rollback", {"version": 1, "hold": False}, (401, 401, 403, 404, 404)),
                  ("POST", "/rollback", {"version": 1, "hold": False, "quarantine": True}, (401, 401, 403, 403, 404)),
                  ("POST", "/v1/release", {}, (401, 401, 403, 403, 200)),
                  ("POST", "/v1/quarantine", {"digest": "0" * 64}, (401, 401, 403, 403, 200))]
        for method, path, body, statuses in wanted:
            for token, status in zip((None, "wrong-0123456789", READER, TRAINER, ADMIN), statuses):
                found, text, headers = self.ask(method, path, body, token)
                self.assertEqual(found, status, (method, path, token, text))
                if status == 401:
                    self.assertTrue(headers["WWW-Authenticate"].startswith("Bearer"))

    def test_no_form_of_a_path_or_of_framing_gets_past(self):
        paths = ["//v1/weights", "/v1//weights", "/%2e/v1/weights", "/v1/%77eights", "/v1/../livez", "/livez/../v1/weights",
                 "/v1/weights/", "/v1/weights;a", "/V1/WEIGHTS", "http://127.0.0.1/v1/weights", "/livez", "/metrics",
                 "/./v1/weights", "/v1/weights%00", "/refit/../v1/weights", "\\v1\\weights", "*"]
        for path in paths:
            for framing in ("", "Content-Length: 0\r\n", "Transfer-Encoding: chunked\r\n",
                            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"):
                request = f"GET {path} HTTP/1.1\r\nHost: a\r\n{framing}Connection: close\r\n\r\n0\r\n\r\n"
                status = int(pki.raw(self.port, request.encode(), self.tls).split()[1])
                self.assertIn(status, (400, 401, 411), (path, framing))
        for request in (b"GET /v1/weights HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + READER.encode() +
                        b"\r\nAuthorization: Bearer " + ADMIN.encode() + b"\r\n\r\n",
                        b"GET /v1/weights HTTP/1.1\r\nHost: a\r\nAuthorization: Basic YTpi\r\n\r\n",
                        b"GET /v1/weights HTTP/1.1\r\nHost: a\r\nAuthorization : Bearer " + ADMIN.encode() + b"\r\n\r\n"):
            self.assertEqual(pki.raw(self.port, request, self.tls).split()[1], b"400")

    def test_a_token_counts_for_its_own_request_only(self):
        first = f"GET /v1/weights HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {ADMIN}\r\n\r\n"
        second = "POST /v1/release HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
        answers = pki.raw(self.port, (first + second).encode(), self.tls)
        self.assertIn(b"HTTP/1.1 200 ", answers)
        self.assertIn(b"HTTP/1.1 401 ", answers)

    def test_a_refused_body_is_not_read_as_a_request(self):
        inner = f"POST /v1/release HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: 2\r\n\r\n{{}}"
        outer = f"POST /v1/release HTTP/1.1\r\nHost: a\r\nContent-Length: {len(inner)}\r\n\r\n{inner}"
        answers = pki.raw(self.port, outer.encode(), self.tls)
        self.assertEqual(answers.count(b"HTTP/1.1 "), 1)
        self.assertIn(b"HTTP/1.1 401 ", answers)
        self.assertNotIn("change=release", self.log(self.a))

    def test_tokens_are_replaced_without_a_restart_and_never_logged(self):
        fresh = "fresh-0123456789"
        self.write("tokens", f"admin:{fresh}\n")
        self.a.refitd.kill(signal.SIGHUP)
        self.wait_log(self.a, "access list read again")
        self.assertEqual(self.ask("GET", "/v1/weights", token=fresh)[0], 200)
        self.assertEqual(self.ask("GET", "/v1/weights", token=ADMIN)[0], 401)
        self.write("tokens", "admin:short\n")
        self.wait_log(self.a, "a new access list is refused")
        self.assertEqual(self.ask("GET", "/v1/weights", token=fresh)[0], 200)
        self.ask("GET", "/v1/weights", token="guess-0123456789")
        for secret in (fresh, ADMIN, READER, "short", "guess-0123456789"):
            self.assertNotIn(secret, self.log(self.a))

    def test_every_change_is_audited_with_its_name_and_result(self):
        self.ask("POST", "/v1/lead", {"name": "x"}, TRAINER)
        self.ask("POST", "/v1/release", {}, ADMIN)
        self.ask("POST", "/refit/none/commit", {"version": 1, "digest": ""}, TRAINER)
        self.assertEqual(os.stat(self.audit).st_mode & 0o777, 0o600)
        with open(self.audit) as file:
            lines = file.read().splitlines()
        self.assertEqual(len(lines), 3)
        self.assertRegex(lines[0], r"by=token:ci@127\.0\.0\.1:\d+ change=lead lead=x epoch=1 .*result=ok$")
        self.assertRegex(lines[1], r"by=token:admin@127\.0\.0\.1:\d+ change=release .*result=ok$")
        self.assertRegex(lines[2], r"by=token:ci@.* change=/refit/none/commit http_status=404 result=refused$")
        os.rename(self.audit, self.audit + ".1")
        self.a.refitd.kill(signal.SIGHUP)
        self.wait_log(self.a, "SIGHUP: looking at")
        self.ask("POST", "/v1/release", {}, ADMIN)
        with open(self.audit) as file:
            self.assertEqual(len(file.read().splitlines()), 1)

    def test_a_start_with_files_that_are_wrong_says_which(self):
        def start(*options):
            done = subprocess.run([tool("sidecar", "refitd"), "--socket", self.path("x.sock"), "--control", "127.0.0.1:0", "--admin",
                                   "127.0.0.1:0", "--data", "127.0.0.1:0", *options], capture_output=True, text=True, timeout=WAIT_S)
            self.assertEqual(done.returncode, 1, done.stderr)
            return done.stderr
        cert, key = self.pki.pair("server")
        bad = self.write("bad", "admin:short\n")
        self.assertIn(f"--token-file: {bad}: line 1: expected a TOKEN", start("--token-file", bad))
        self.assertIn("/nonexistent: no such file", start("--token-file", "/nonexistent"))
        self.assertIn("not the key of the certificate", start("--tls-cert", cert, "--tls-key", self.pki.path("client.key")))
        self.assertIn("expected a regular file", start("--audit-log", "/dev/null"))
        self.assertIn("a KIND of uri", start("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", self.ca, "--tls-client-names",
                                             self.write("names", "admin:root\n")))

    def test_publishers_and_the_command_line_show_tokens(self):
        b = self.secure("b", "--token-file", self.tokens, readers=True)
        self.trust(cacert=self.ca, token_file=self.write("token", TRAINER + "\n"))
        lines = self.publish(source_layout(), [1], [b])
        self.assertTrue(lines[0].startswith("ok 1 "), lines)
        b.wait_step(1)
        code, text = self.cli("release", b.url)
        self.assertEqual(code, 1)
        self.assertIn("the role admin is needed", text)
        code, text = self.cli("release", b.url, "--token-file", self.tokens)
        self.assertEqual(code, 1, text)  # the list's first entry may only read
        code, text = self.cli("release", b.url, "--token-file", self.write("token", ADMIN))
        self.assertEqual(code, 0, text)
        code, text = self.cli("status", "http://192.0.2.1:1")
        self.assertIn("would cross the network in the clear", text)


class Sockets(SecurityTest):
    def test_a_unix_socket_is_open_to_those_its_mode_lets_in(self):
        path = self.path("control.sock")
        a = self.replica("a", engine_layout(1), "--control", f"unix:{path}", "--control-mode", "0660", readers=False)
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o660)
        self.assertEqual(a.ports["control"], 0)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(WAIT_S)
            client.connect(path)
            client.sendall(b"POST /v1/release HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            self.assertIn(b"200 OK", client.recv(4096))
        self.assertRegex(self.wait_log(a, "change=release"), rf'by="unix:uid={os.getuid()},pid={os.getpid()}" change=release')
        a.refitd.kill(signal.SIGTERM)
        self.assertEqual(a.refitd.wait(), 0)
        self.assertFalse(os.path.exists(path))


class Rotation(SecurityTest):
    def test_certificates_swapped_twice_in_the_middle_of_a_refit(self):
        def files(name, kind):
            cert, key = self.pki.pair(name)
            return {f"{kind}.crt": cert, f"{kind}.key": key, "ca.crt": self.ca}
        for name in ("one", "two", "three"):
            self.pki.leaf(name)
        server = pki.Mount(self.path("server-secret"), files("one", "tls"))
        client = pki.Mount(self.path("client-secret"), files("client", "tls"))
        a = self.replica("a", engine_layout(1), "--tls-cert", server.path("tls.crt"), "--tls-key", server.path("tls.key"),
                         "--tls-client-ca", server.path("ca.crt"), "--tls-client-optional", "--rate", "256KiB",
                         reader_options=["prepare-file=" + self.path("prepare")])
        a.__class__ = SecureReplica
        a.ca, a.client = self.ca, self.pki.pair("client")
        self.assertEqual(pki.serial(a.control_port, self.ca), "one")
        held = self.keep("prepare")
        ranks = self.publish(source_layout(), [1], [a], f"cacert={client.path('ca.crt')}", f"cert={client.path('tls.crt')}",
                             f"key={client.path('tls.key')}", "deadline=120000", wait=False)
        a.wait_phase("transfer", version=1)
        watch = http.client.HTTPSConnection("127.0.0.1", a.control_port, timeout=WAIT_S,
                                            context=pki.context(self.ca, a.client))
        watch.request("GET", f"/refit/{a.call('GET', '/refit')[1]['id']}/events")
        events = watch.getresponse()  # begun under the first certificate, and never cut
        for turn, name in enumerate(("two", "three"), 1):
            server.swap(files(name, "tls"))
            self.pki.leaf("client", san="URI:spiffe://cluster/trainer")
            client.swap(files("client", "tls"))
            self.wait_log(a, "\"TLS files read again\" use=control", turn)
            self.assertEqual(pki.serial(a.control_port, self.ca), name)
            self.assertFalse(a.call("GET", "/refit")[1]["terminal"], "it was to be in the middle of the refit")
        os.unlink(held)
        for rank in ranks:
            rank.wait()
        self.assertTrue(ranks[0].lines[0].startswith("ok 1 "), ranks[0].lines)
        a.wait_step(1)
        self.assertIn(b'"phase":"committed"', events.read())
        watch.close()
        self.assertIn("by=uri:spiffe://cluster/trainer@", self.log(a))

    def test_a_bad_new_certificate_keeps_the_old(self):
        for name in ("one", "two"):
            self.pki.leaf(name)
        cert, key = self.pki.pair("one")
        files = {"tls.crt": cert, "tls.key": key}
        mount = pki.Mount(self.path("secret"), files)
        a = self.replica("a", engine_layout(1), "--tls-cert", mount.path("tls.crt"), "--tls-key", mount.path("tls.key"),
                         readers=False)
        mount.swap({"tls.crt": self.pki.path("two.pem"), "tls.key": key})
        self.wait_log(a, "new TLS files are refused, the old ones are in use")
        self.assertEqual(pki.serial(a.control_port, self.ca), "one")
        mount.swap({"tls.crt": self.pki.path("two.pem"), "tls.key": self.pki.path("two.key")})
        self.wait_log(a, "\"TLS files read again\" use=control")
        self.assertEqual(pki.serial(a.control_port, self.ca), "two")


class Crowd(SecurityTest):
    def test_a_refit_goes_on_among_ten_thousand_connections(self):
        wanted, spare = 10000, 500
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < wanted + spare:
            self.skipTest(f"needs {wanted + spare} descriptors, {hard} are allowed here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted + spare, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        a = self.secure("a", "--tls-client-ca", self.ca, "--rate", "1MiB", readers=True)
        cert, key = self.pki.pair("client")
        self.trust(cacert=self.ca, cert=cert, key=key)
        ranks = self.publish(source_layout(), [1], [a], wait=False)
        crowd = []
        self.addCleanup(lambda: [one.close() for one in crowd])
        for i in range(wanted):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", a.control_port))
            crowd.append(one)
            if i % 1000 == 999:
                self.assertEqual(a.admin("/livez")[0], 200)
        for rank in ranks:
            rank.wait()
        self.assertTrue(ranks[0].lines[0].startswith("ok 1 "), ranks[0].lines)
        a.wait_step(1)
        metrics = a.admin("/metrics")[1]
        held = int([line for line in metrics.splitlines() if line.startswith('refit_http_connections{listener="control"}')][0].split()[1])
        self.assertLessEqual(held, 256)


if __name__ == "__main__":
    unittest.main()
