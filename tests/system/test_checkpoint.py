# SPDX-License-Identifier: Apache-2.0
"""Refits from checkpoint directories, by HTTP alone, with readers that check every byte."""
import json
import os
import struct
import unittest

from harness import SystemTest, engine_layout, source_layout, tool

MASK = (1 << 64) - 1


def mix(z):
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9 & MASK
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb & MASK
    return z ^ (z >> 31)


def pattern(name, version, units):
    """As pattern.c has it, for 2-byte units."""
    value = 1469598103934665603
    for byte in name.encode():
        value = (value ^ byte) * 1099511628211 & MASK
    seed = mix((value + version * 0x9e3779b97f4a7c15) & MASK)
    return struct.pack(f"<{units}H", *[mix((seed + i) & MASK) & 0xffff for i in range(units)])


def tensors():
    for entry in source_layout()["entries"]:
        for layer in range(4) if "for" in entry else (None,):
            yield entry["tensor"].replace("{l}", str(layer)), entry["shape"]


def write_checkpoint(path, version, files=1):
    """One file, or several with an index."""
    os.makedirs(path)
    everything = list(tensors())
    weight_map = {}
    for number in range(files):
        chosen = everything[number::files]
        name = "model.safetensors" if files == 1 else f"model-{number + 1:05}-of-{files:05}.safetensors"
        header, data, at = {}, [], 0
        for tensor, shape in chosen:
            units = shape[0] * (shape[1] if len(shape) == 2 else 1)
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * units]}
            data.append(pattern(tensor, version, units))
            at += 2 * units
            weight_map[tensor] = name
        text = json.dumps(header).encode()
        with open(os.path.join(path, name), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + b"".join(data))
    if files > 1:
        with open(os.path.join(path, "model.safetensors.index.json"), "w") as file:
            json.dump({"metadata": {"total_size": 1}, "weight_map": weight_map}, file)


class Checkpoint(SystemTest):
    def setUp(self):
        super().setUp()
        self.root = self.path("root")
        os.mkdir(self.root)
        write_checkpoint(os.path.join(self.root, "v1"), 1)

    def start(self, *options):
        return self.replica("a", engine_layout(2), "--checkpoint-root", self.root, *options)

    def refit(self, replica, path, version):
        status, answer = replica.call("POST", "/refit", {"version": version, "checkpoint": path})
        if status != 202:
            return answer["detail"]
        state = replica.wait_session(lambda s: s["terminal"], answer["id"])
        return state["phase"] if state["phase"] == "committed" else state["error"]["text"]

    def test_a_post_is_enough(self):
        replica = self.start()
        self.assertEqual(self.refit(replica, "v1", 1), "committed")
        replica.wait_step(1)
        write_checkpoint(os.path.join(self.root, "v2"), 2, files=3)
        self.assertEqual(self.refit(replica, "v2", 2), "committed")
        replica.wait_step(2)
        state = replica.call("GET", "/refit")[1]
        self.assertEqual((state["transport"], state["bytes_done"]), ("file", state["bytes_due"]))

    def test_a_file_a_trainer_and_the_command_agree_on_the_digest(self):
        replica = self.start()
        self.refit(replica, "v1", 1)
        import subprocess
        said = subprocess.run([tool("cli", "refit"), "digest", os.path.join(self.root, "v1")], capture_output=True, text=True,
                              check=True).stdout.split()[0]
        other = self.replica("b", engine_layout(1))
        line = self.publish(source_layout(), [1], [other])[0]
        self.assertEqual({said, line.split(" ")[2]}, {replica.weights()["active"]["digest"]})

    def test_initial_weights(self):
        replica = self.start("--initial-checkpoint", "v1", "--initial-version", "1")
        replica.wait_step(1)
        self.assertEqual(replica.admin("/readyz")[0], 200)

    def test_cut_short_files_and_bad_paths_are_named_and_nothing_is_lost(self):
        replica = self.start()
        self.assertEqual(self.refit(replica, "v1", 1), "committed")
        write_checkpoint(os.path.join(self.root, "cut"), 2)
        file = os.path.join(self.root, "cut", "model.safetensors")
        os.truncate(file, os.path.getsize(file) - 1)
        self.assertIn("model.safetensors", self.refit(replica, "cut", 2))
        for path in ("../root/v1", "/etc", "v1/../../root/v1", "none", "", "v1\x00x"):
            self.assertNotEqual(self.refit(replica, path, 2), "committed", path)
        os.symlink("/", os.path.join(self.root, "out"))
        self.assertNotEqual(self.refit(replica, "out" + self.root + "/v1", 2), "committed")
        self.assertEqual(replica.active(), 1)
        write_checkpoint(os.path.join(self.root, "v3"), 3)
        self.assertEqual(self.refit(replica, "v3", 3), "committed")
        replica.wait_step(3)

    def test_a_file_cut_short_while_it_is_read_aborts(self):
        replica = self.start("--rate", "256KiB")
        self.assertEqual(self.refit(replica, "v1", 1), "committed")
        write_checkpoint(os.path.join(self.root, "v2"), 2)
        status, answer = replica.call("POST", "/refit", {"version": 2, "checkpoint": "v2"})
        self.assertEqual(status, 202, answer)
        replica.wait_phase("transfer", "committed", "aborted")
        os.truncate(os.path.join(self.root, "v2", "model.safetensors"), 4096)
        state = replica.wait_session(lambda s: s["terminal"], answer["id"])
        self.assertEqual(replica.active(), 1 if state["phase"] == "aborted" else 2)
        self.assertEqual(state["phase"], "aborted", state)


if __name__ == "__main__":
    unittest.main()
