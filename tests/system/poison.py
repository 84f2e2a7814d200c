# SPDX-License-Identifier: Apache-2.0
"""What nobody should send: garbage, and documents, greetings and frames that are well formed and mean harm."""
import json
import os
import random
import re
import socket
import struct


def number_of(name, *header):
    """A greeting of another version is turned away before anything else is looked at."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", *header), encoding="utf-8") as file:
        return int(re.search(rf"^#define {name} (\d+)$", file.read(), re.M)[1])


MAGIC, PROTOCOL = 0x54494652, number_of("REFIT_PROTOCOL_VERSION", "transport", "greeting.h")
PLANNER = number_of("REFIT_PLANNER_VERSION", "layouts", "plan.h")
GREETING = "<IIII16sIIIII128s"
FRAME = "<IIQII"
FRAMES = (0x4d4c4557, 0x53464552, 0x544e5247, 0x454e4f44, 0x41544144, 0x54534744, 0x43454950, 0x56494c41, 0x45594223)
NUMBERS = (0, -1, 1, 1 << 31, (1 << 32) - 1, 1 << 53, (1 << 63) - 1, "9223372036854775808", 1e300, -0.0)
WORDS = ("", "x" * 5000, "\x00", "a\nb", "../../etc/passwd", "/dev/zero", "%n%s%x", "\ud7ff\uffff", "http://127.0.0.1:1", "*")
ROUTES = (("POST", "/v1/lead"), ("POST", "/v1/resign"), ("PUT", "/v1/sources/" + 64 * "0"), ("PUT", "/v1/sources/x"), ("POST", "/v1/plan"),
          ("POST", "/refit"), ("POST", "/refit/x/commit"), ("POST", "/refit/x/abort"), ("POST", "/v1/serve"), ("POST", "/v1/serve/x/end"),
          ("POST", "/rollback"), ("POST", "/v1/release"), ("POST", "/v1/quarantine"), ("GET", "/refit/" + 3000 * "y"),
          ("GET", "/v1/weights?" + 3000 * "&"), ("GET", "/refit/x/events"), ("GET", "/refit/x/holders"), ("DELETE", "/refit"))
MEMBERS = {"/v1/lead": ("name", "takeover"), "/v1/resign": ("name", "epoch"), "/v1/plan": ("source",),
           "/refit": ("version", "epoch", "publish_id", "source", "transport", "commit", "kv", "deadline_ms", "digest", "label", "fleet",
                      "ranks", "unchanged", "resume", "checkpoint"),
           "/v1/serve": ("version", "refit", "token", "holder", "transport", "card", "layout", "first_rank", "rank_count", "deadline_ms"),
           "/rollback": ("kv", "quarantine", "hold"), "/v1/quarantine": ("digest",)}


def value(rng, depth=0):
    kind = rng.randrange(7 if depth < 4 else 4)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return rng.choice(WORDS)
    if kind == 2:
        return rng.choice((None, True, False))
    if kind == 3:
        return rng.randrange(1 << 16)
    if kind == 4:
        return [value(rng, depth + 1) for _ in range(rng.randrange(5))]
    return {rng.choice(WORDS + MEMBERS["/refit"] + MEMBERS["/v1/serve"]): value(rng, depth + 1) for _ in range(rng.randrange(5))}


def document(rng, path):
    """Well formed, of the members that the route knows, with values that it should not believe."""
    known = MEMBERS.get(path, ())
    chosen = [name for name in known if rng.random() < 0.7]
    return json.dumps({name: value(rng) for name in chosen})


def bodies(rng, path):
    yield rng.randbytes(200)
    yield b"[" * 50000
    yield b"{" + b'"a":{' * 3000
    yield b'{"version": 1, "version": 2}'
    yield b'{"version": 1' + b"0" * 4000 + b"}"
    yield b'{"a": "\\ud800"}'
    yield b"\xff\xfe{\x00}\x00"
    for _ in range(6):
        yield document(rng, path)


def requests(rng):
    for method, path in ROUTES:
        for body in bodies(rng, path):
            yield method, path, None if method == "GET" else body


def raw_requests(rng):
    """No HTTP, or hardly."""
    yield rng.randbytes(300)
    yield b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n"
    yield b"POST /refit HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"
    yield b"POST /refit HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00" + rng.randbytes(512)  # TLS where there is none
    yield b"POST /refit HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"  # and then the end


def fleets(rng, member, others):
    """Values of "fleet" that are well formed and lead nowhere: ports where nobody is, the member itself, no sockets."""
    cards = [{"addresses": ["127.0.0.1"], "port": 1}, {"address": "127.0.0.1", "port": 1}, {"path": "/dev/null"}, {"path": "/"},
             {"path": "x" * 300}, {"port": 0}, {}, None, {"address": "255.255.255.255", "port": 65535}]
    cards += [one for one in others]

    def one(name):
        entry = {"name": name, "domain": rng.choice(("a", "b", "x" * 100))}
        for path in ("tcp", "local"):
            if rng.random() < 0.8:
                entry[path] = rng.choice(cards)
        return entry

    for count in (1, 2, 7, 1024):
        yield {"id": "poison", "token": rng.randbytes(16).hex(), "self": rng.randrange(count), "sources": rng.choice((0, 1, 5)),
               "members": [one(rng.choice((member, f"http://10.77.0.{i % 9}:1", "same"))) for i in range(count)]}
    yield {"id": "poison", "token": 32 * "0", "self": 1024, "members": [one("a")] * 1025}
    yield {"id": "x" * 4000, "token": 32 * "0", "self": 0, "members": [one("a")]}
    yield {"id": "poison", "token": 32 * "g", "self": 0, "members": [one("a")]}


def greeting(refit_id, token, holder, edges, stream=0, streams=1, flags=1, digests=None):
    known = refit_id.encode()
    head = struct.pack(GREETING, MAGIC, PROTOCOL, PLANNER, flags, token, holder, stream, streams, edges, len(known), known)
    return head + b"".join(struct.pack("<Q", digest) for digest in (digests or []))


def frames(rng):
    for kind in FRAMES:
        for length in (0, 24, 1 << 20, (1 << 32) - 1):
            yield struct.pack(FRAME, kind, length, rng.getrandbits(64), rng.getrandbits(32), rng.getrandbits(32)) + rng.randbytes(256)
    yield rng.randbytes(4096)


def talk(connection, *parts, patience=0.05):
    """Sends what is taken, then hears the other out, but not for long where no answer is due; what it said first."""
    try:
        connection.settimeout(5)
        for part in parts:
            connection.sendall(part)
        connection.settimeout(patience)
        return connection.recv(4096)
    except OSError:
        return b""
    finally:
        connection.close()


def to_packet_socket(path, rng):
    """Engines' and local holders' sockets: packets, with descriptors that mean nothing."""
    messages = [b"", rng.randbytes(100), b"{", b"[]", b'{"type": 1}', b'{"type": "attach", "rank": -1}', rng.randbytes(60000),
                json.dumps({"type": "attach", "abi": value(rng), "rank": value(rng), "ranks": value(rng), "process": value(rng)}).encode(),
                json.dumps({"type": rng.choice(("slot", "claim", "prepared", "flipped", "declare")), "slot": value(rng)}).encode()]
    null = os.open("/dev/null", os.O_RDWR)
    try:
        for message in messages:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(5)
                connection.connect(path)
                try:
                    socket.send_fds(connection, [message], [null] * rng.choice((1, 3, 100)))
                    connection.send(message)
                    connection.settimeout(0.05)
                    connection.recv(4096)
                except OSError:
                    pass
    finally:
        os.close(null)
