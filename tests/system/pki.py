# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, mounted secrets as a kubelet makes them, and HTTPS clients with and without manners."""
import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess

from harness import WAIT_S, tool

NAMES = "DNS:localhost,IP:127.0.0.1"


class Pki:
    """A directory with CAs and leaves, each NAME.pem and NAME.key."""

    def __init__(self, directory):
        self.directory = directory
        os.makedirs(directory, exist_ok=True)

    def ca(self, name):
        subprocess.run([tool("tests", "tls", "pki"), self.directory, "ca", name], check=True)
        return self.path(name + ".pem")

    def leaf(self, name, ca="ca", san=NAMES, valid=(-3600, 86400)):
        subprocess.run([tool("tests", "tls", "pki"), self.directory, "leaf", name, ca, san, *map(str, valid)], check=True)
        return self.pair(name)

    def pair(self, name):
        return self.path(name + ".pem"), self.path(name + ".key")

    def path(self, name):
        return os.path.join(self.directory, name)


class Mount:
    """DIR/tls.crt -> ..data/tls.crt, DIR/..data -> ..GENERATION: replaced by a swap of ..data, as a kubelet does it."""

    def __init__(self, directory, files):
        self.directory, self.generation = directory, 0
        os.makedirs(directory)
        self.swap(files)
        for name in files:
            os.symlink(os.path.join("..data", name), self.path(name))

    def path(self, name):
        return os.path.join(self.directory, name)

    def swap(self, files):
        old, self.generation = self.generation, self.generation + 1
        fresh = self.path(f"..{self.generation}")
        os.mkdir(fresh)
        for name, source in files.items():
            shutil.copy(source, os.path.join(fresh, name))
        os.symlink(f"..{self.generation}", self.path("..tmp"))
        os.rename(self.path("..tmp"), self.path("..data"))
        if old:
            shutil.rmtree(self.path(f"..{old}"))


def context(ca, pair=None, **settings):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(ca)
    if pair:
        made.load_cert_chain(*pair)
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def call(port, tls, method, path, body=None, token=None, host="127.0.0.1"):
    """One request; its status, its body and its headers."""
    connection = http.client.HTTPSConnection(host, port, timeout=WAIT_S, context=tls)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode(), dict(answer.getheaders())
    finally:
        connection.close()


def raw(port, data, tls=None):
    """All that comes back for these bytes, until the other end closes or a second answer can't be expected any more."""
    with contextlib.ExitStack() as opened:
        stream = opened.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_S))
        if tls:
            stream = opened.enter_context(tls.wrap_socket(stream, server_hostname="127.0.0.1"))
        stream.sendall(data)
        got = b""
        while True:
            try:
                more = stream.recv(65536)
            except (ConnectionResetError, ssl.SSLError):
                break
            if not more:
                break
            got += more
        return got


def serial(port, ca):
    """The serial number of the certificate that is served there now, and its name."""
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as plain, \
            context(ca).wrap_socket(plain, server_hostname="127.0.0.1") as stream:
        return dict(pair[0] for pair in stream.getpeercert()["subject"])["commonName"]
