# SPDX-License-Identifier: Apache-2.0
"""The control API against repeats, reorderings, rivals and bad requests, between real processes."""
import hashlib
import json
import select
import signal
import socket
import unittest

from harness import WAIT_S, SystemTest, engine_layout, source_layout


def canonical(document):
    text = json.dumps(document, separators=(",", ":"), sort_keys=True)
    return text, hashlib.sha256(text.encode()).hexdigest()


class Control(SystemTest):
    def setUp(self):
        super().setUp()
        self.a = self.replica("a", engine_layout(2))
        lines = self.publish(source_layout(), [1], [self.a])
        self.assertTrue(lines[0].startswith("ok 1 "), lines)

    def lead(self, name="t", takeover=False):
        return self.a.call("POST", "/v1/lead", {"name": name, "takeover": takeover})

    def put_source(self, document=None):
        text, digest = canonical(document or source_layout())
        status, _ = self.a.call("PUT", f"/v1/sources/{digest}", text)
        self.assertIn(status, (200, 201))
        return digest

    def request(self, epoch, **changes):
        body = {"version": 2, "label": "x", "epoch": epoch, "publish_id": "p1", "source": self.put_source(), "transport": "tcp",
                "commit": "barrier", "deadline_ms": 20000}
        body.update(changes)
        return self.a.call("POST", "/refit", body)

    def epoch(self):
        return self.lead(takeover=True)[1]["epoch"]

    def test_a_repeated_request_is_the_same_refit_and_another_body_is_refused(self):
        epoch = self.epoch()
        status, first = self.request(epoch)
        self.assertEqual(status, 202, first)
        status, again = self.request(epoch)
        self.assertEqual((status, again["id"], again["existing"]), (202, first["id"], True))
        status, problem = self.request(epoch, label="y")
        self.assertEqual(status, 422, problem)
        self.a.call("POST", f"/refit/{first['id']}/abort", {"reason": "test"})
        self.assertEqual(self.a.wait_session(lambda s: s["terminal"], first["id"])["phase"], "aborted")
        status, again = self.request(epoch)  # still the same refit: it was aborted
        self.assertEqual(again.get("id"), first["id"])
        self.assertEqual(self.a.active(), 1)

    def test_a_stale_epoch_and_a_second_lead_are_refused_by_name(self):
        old = self.epoch()
        new = self.lead("other", takeover=True)[1]["epoch"]
        self.assertGreater(new, old)
        self.assertEqual(self.request(old)[0], 412)
        status, problem = self.lead("third")
        self.assertEqual(status, 409)
        self.assertIn("other", problem["detail"])

    def test_commit_and_abort_out_of_order(self):
        epoch = self.epoch()
        _, refit = self.request(epoch)
        path = f"/refit/{refit['id']}"
        self.assertEqual(self.a.call("POST", path + "/commit", {"version": 2, "digest": "0" * 64})[0], 503)
        self.assertEqual(self.a.call("POST", path + "/abort", {"reason": "test"})[0], 200)
        self.a.wait_session(lambda s: s["terminal"], refit["id"])
        self.assertEqual(self.a.call("POST", path + "/abort", {"reason": "test"})[0], 200)
        self.assertEqual(self.a.call("POST", path + "/commit", {"version": 2, "digest": "0" * 64})[0], 409)
        self.assertEqual(self.a.call("POST", "/refit/none/commit", {"version": 2, "digest": ""})[0], 404)

    def test_a_wrong_digest_at_commit_aborts(self):
        replica = self.replica("slow", engine_layout(1), reader_options=["prepare-ms=600"])
        ranks = self.publish(source_layout(), [1], [replica], wait=False)
        state = replica.wait_phase("prepare", "staged")
        replica.wait_session(lambda s: s["phase"] == "staged" or s["terminal"], state["id"])
        replica.call("POST", f"/refit/{state['id']}/commit", {"version": 1, "digest": "f" * 64})
        end = replica.wait_session(lambda s: s["terminal"], state["id"])
        for rank in ranks:
            rank.wait()
        # The trainers' own commit may have come first; then the wrong one changed nothing.
        if end["phase"] == "aborted":
            self.assertEqual(end["error"]["status"], "corrupt")
            self.assertIsNone(replica.active())
        else:
            self.assertEqual(replica.active(), 1)

    def test_rollbacks_that_wait_hold_up_no_abort(self):
        self.assertTrue(self.publish(source_layout(), [2], [self.a])[0].startswith("ok 2 "))
        for reader in self.a.readers.values():
            reader.kill(signal.SIGSTOP)  # never between two steps: a rollback waits
        waiting = []
        for _ in range(6):
            client = socket.create_connection(("127.0.0.1", self.a.control_port), timeout=WAIT_S)
            client.sendall(b"POST /rollback HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            waiting.append(client)
        self.a.weights()  # the loop has them
        self.assertEqual(self.a.call("POST", "/refit/none/abort", {})[0], 404)
        self.assertEqual(self.lead("t", takeover=True)[0], 200)
        self.assertEqual(select.select(waiting, [], [], 0)[0], [])
        for reader in self.a.readers.values():
            reader.kill(signal.SIGCONT)
        for client in waiting:
            self.assertIn(b" 200 OK", client.makefile("rb").readline())
            client.close()
        self.assertEqual(self.a.active(), 1)

    def test_versions_only_grow(self):
        epoch = self.epoch()
        for version in (1, 0):
            status, problem = self.request(epoch, version=version, publish_id=f"v{version}")
            self.assertIn(status, (400, 409), problem)

    def test_a_source_that_lacks_a_tensor_names_it(self):
        document = source_layout()
        document["entries"] = [e for e in document["entries"] if e["tensor"] != "layers.{l}.up.weight"]
        epoch = self.epoch()
        status, answer = self.request(epoch, source=self.put_source(document))
        text = json.dumps(answer) if status != 202 else \
            self.a.wait_session(lambda s: s["terminal"], answer["id"])["error"]["text"]
        self.assertIn("layers.0.up.weight", text)
        self.assertEqual(self.a.active(), 1)

    def test_a_source_of_another_shape_or_dtype_names_both(self):
        for member, value, expected in (("dtype", "F32", "F32"), ("shape", [64, 63], "63")):
            document = source_layout()
            entry = next(e for e in document["entries"] if e["tensor"] == "layers.{l}.q.weight")
            entry[member] = value
            status, answer = self.request(self.epoch(), source=self.put_source(document), publish_id=member)
            text = json.dumps(answer) if status != 202 else \
                self.a.wait_session(lambda s: s["terminal"], answer["id"])["error"]["text"]
            self.assertIn("layers.0.q.weight", text)
            self.assertIn(expected, text)

    def test_a_served_layout_with_a_hole_or_an_overlap_is_named_and_gets_nothing(self):
        for offset, expected in ((8, "are in no region"), (2, "is written twice")):
            regions = [{"tensor": "a", "shape": [4], "offset": 0, "stride": [1]},
                       {"tensor": "b", "shape": [4], "offset": offset, "stride": [1]}]
            served = {"format": "refit-layout/1", "ranks": 1, "entries": [
                {"rank": 0, "buffer": "all", "bytes": 4 + offset, "dtype": "U8", "regions": regions, "fills": []}]}
            source = {"format": "refit-layout/1", "ranks": 1, "meshes": {"m": {"axes": ["x"], "shape": [1]}}, "entries": [
                {"tensor": name, "dtype": "U8", "shape": [4], "mesh": "m", "placements": ["Replicate"]} for name in "ab"]}
            replica = self.replica(f"at-{offset}", served)
            lines = "\n".join(self.publish(source, [1], [replica]))
            self.assertIn("failed 1 ", lines)
            self.assertIn(expected, lines)
            self.assertIsNone(replica.active())

    def test_bad_requests_are_problems_and_change_nothing(self):
        epoch = self.epoch()
        digest = self.put_source()
        good = {"version": 2, "epoch": epoch, "publish_id": "p", "source": digest, "transport": "tcp"}
        for change in ({"version": "x"}, {"version": -1}, {"version": 1.5}, {"version": 1 << 70}, {"epoch": "one"},
                       {"unknown": 1}, {"kv": "maybe"}, {"commit": "never"}, {"deadline_ms": -5}, {"deadline_ms": 1 << 62},
                       {"transport": "pigeon"}, {"label": "x" * 500}, {"publish_id": ""}, {"source": "abc"}, {"digest": "zz"}):
            status, problem = self.a.call("POST", "/refit", {**good, **change})
            self.assertIn(status, (400, 422, 501), (change, problem))
            self.assertIn("detail", problem)
        for body in ("{", "[]", "", "null", "{\"version\": 2, \"version\": 3}", "\x00\x01"):
            self.assertEqual(self.a.call("POST", "/refit", body)[0], 400, body)
        self.assertEqual(self.a.call("PUT", "/v1/sources/" + "0" * 64, json.dumps(source_layout()))[0], 422)
        self.assertEqual(self.a.call("POST", "/refit", {**good, "source": "0" * 64})[0], 404)
        self.assertEqual(self.a.active(), 1)

    def test_oversized_numbers_are_refused_and_change_nothing(self):
        epoch = self.epoch()
        digest = self.put_source()
        for number in ("18446744073709551616", "99999999999999999999999999", "1" + "0" * 400, "9223372036854775808", "1e300", "-1"):
            status, problem = self.a.call("POST", "/refit", f'{{"version": {number}, "epoch": {epoch}, "publish_id": "p", '
                                                            f'"source": "{digest}", "transport": "tcp"}}')
            self.assertEqual(status, 400, (number, problem))
            status, problem = self.a.call("POST", "/refit/none/commit", f'{{"version": {number}}}')
            self.assertEqual(status, 400, (number, problem))
        self.assertEqual(self.a.call("POST", "/refit", {"version": "18446744073709551616", "checkpoint": "x"})[0], 400)
        known = self.a.call("GET", "/refit")[1]["id"]
        for query in ("after=99999999999999999999", "after=1&wait_ms=99999999999999999999", "wait_ms=-1"):
            self.assertEqual(self.a.call("GET", f"/refit/{known}?{query}")[0], 400, query)
        for change in ({"ranks": 1 << 40}, {"ranks": 1 << 31}, {"meshes": {"m": {"axes": ["x"], "shape": [1 << 62]}}}):
            self.refuse_source({**source_layout(), **change})
        for shape in ([1 << 62, 1 << 62], [1 << 63], [1 << 61, 64], [-1, 4]):
            self.refuse_source(self.changed_entry(shape=shape))
        for loop in ([0, 1 << 40], [0, 1 << 62], [1 << 62, 1 << 63]):
            self.refuse_source(self.changed_entry(**{"for": {"l": loop}}))
        self.assertEqual(self.a.active(), 1)
        lines = self.publish(source_layout(), [(1 << 64) - 1], [self.a], "takeover")  # the largest one is a version
        self.assertTrue(lines[0].startswith(f"ok {(1 << 64) - 1} "), lines)

    def changed_entry(self, **changes):
        document = source_layout()
        next(e for e in document["entries"] if e["tensor"] == "layers.{l}.q.weight").update(changes)
        return document

    def refuse_source(self, document):
        text, digest = canonical(document)
        status, problem = self.a.call("PUT", f"/v1/sources/{digest}", text)
        self.assertIn(status, (400, 422), problem)
        self.assertTrue(problem["detail"], problem)

    def test_a_lead_that_was_taken_over_from_can_do_nothing_any_more(self):
        first = self.lead("first", takeover=True)[1]["epoch"]
        _, refit = self.request(first)
        second = self.lead("second", takeover=True)[1]["epoch"]
        state = self.a.wait_session(lambda s: s["terminal"], refit["id"])
        self.assertEqual(state["phase"], "aborted")
        self.assertIn("second", state["error"]["text"])
        status, newer = self.request(second, publish_id="p2", version=3)
        self.assertEqual(status, 202, newer)
        for body in ({}, {"publish_id": "p2"}, {"version": 9, "publish_id": "p3"}):  # repeats, the other's name, a newer one
            self.assertEqual(self.request(first, **body)[0], 412)
        self.assertEqual(self.a.call("POST", f"/refit/{refit['id']}/commit", {"version": 2, "digest": "0" * 64})[0], 409)
        self.assertEqual(self.a.call("POST", f"/refit/{refit['id']}/abort", {"reason": "late"})[0], 200)
        self.assertFalse(self.a.call("GET", f"/refit/{newer['id']}")[1]["terminal"])
        self.assertEqual(self.a.active(), 1)

    def test_a_repeated_rollback_does_not_bring_the_version_back_that_it_left(self):
        lines = self.publish(source_layout(), [2], [self.a])
        self.assertTrue(lines[0].startswith("ok 2 "), lines)
        for body in ({}, {}, {"version": 1}, {"version": 1, "kv": "keep"}, {"quarantine": True}, {}):
            status, answer = self.a.call("POST", "/rollback", body)
            self.assertEqual((status, answer["active"]["version"], answer["held"]), (200, 1, True), body)
        self.assertEqual(self.a.weights()["retained"][0]["version"], 2)
        self.a.call("POST", "/v1/release", {})
        lines = self.publish(source_layout(), [2], [self.a])  # the repeat that asked for quarantine meant version 2's bytes
        self.assertIn("quarantine", "\n".join(lines))
        self.assertEqual(self.a.active(), 1)

    def test_two_trainers_at_once_end_in_one_winner_and_one_reason(self):
        first = self.publish(source_layout(), [10, 11, 12], [self.a], "name=first", wait=False)
        second = self.publish(source_layout(), [20, 21, 22], [self.a], "name=second", "takeover", wait=False)
        lines = []
        for rank in first + second:
            rank.wait()
            lines += rank.lines
        self.assertTrue(any(line.startswith("ok ") for line in lines), lines)
        self.assertIn(self.a.active(), (1, 10, 11, 12, 20, 21, 22))
        final = self.publish(source_layout(), [30], [self.a], "name=third", "takeover")
        self.assertTrue(final[0].startswith("ok 30 "), final)

    def test_a_quarantined_digest_is_refused(self):
        digest = self.a.weights()["active"]["digest"]
        self.publish(source_layout(), [2], [self.a])
        self.assertEqual(self.a.call("POST", "/v1/quarantine", {"digest": digest, "on": True})[0], 200)
        status, problem = self.request(self.epoch(), version=3, digest=digest)
        self.assertEqual(status, 409, problem)
        self.assertIn(digest, problem["detail"])
        self.assertEqual(self.a.active(), 2)


if __name__ == "__main__":
    unittest.main()
