# SPDX-License-Identifier: Apache-2.0
"""Exact bytes, counted by the kernel: a refit inside a network namespace of its own, whose loopback carries nothing else."""
import math
import os
import subprocess
import sys
import unittest

from harness import SLOWDOWN, SystemTest, engine_layout, source_layout


def loopback_bytes():
    with open("/proc/net/dev") as file:
        fields = next(line for line in file if line.strip().startswith("lo:")).split(":")[1].split()
    return int(fields[8])  # transmitted


def resent_segments():
    """Segments that TCP sent again, on its own account: a busy machine makes it believe that one was lost."""
    with open("/proc/net/snmp") as file:
        names, values = [line.split() for line in file if line.startswith("Tcp:")]
    return int(values[names.index("RetransSegs")])


RESENT = 4  # segments of at most 64 KiB, for each replica of a broadcast
TRIES = 8  # for a refit in which TCP sent nothing again

# The control API with its documents, per replica: who looks at a refit that takes longer looks more often.
CONTROL_BYTES = 300_000 * SLOWDOWN


def rows_of_rank_0(layout):
    """Bytes of the layout's tensors that rank 0 holds, and of all: cut by rows, BF16."""
    own = model = 0
    for entry in layout["entries"]:
        copies = entry["for"]["l"][1] - entry["for"]["l"][0] if "for" in entry else 1
        rows, row = entry["shape"][0], 2 * math.prod(entry["shape"][1:])
        own += copies * row * -(-rows // layout["ranks"])
        model += copies * row * rows
    return own, model


class Sockets(SystemTest):
    version = 0

    def inside(self):
        """True in a namespace of this test's own; otherwise the test was run in one, as another process, and passed."""
        if os.environ.get("REFIT_IN_NETNS") == "1":
            return True
        done = subprocess.run(["unshare", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "--", sys.executable, "-m",
                               "unittest", self.id()], env=dict(os.environ, REFIT_IN_NETNS="1"), capture_output=True, text=True,
                              check=False)
        if "Operation not permitted" in done.stderr:
            self.skipTest("a network namespace can't be made here (needs root)")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return False

    def carried(self, replicas, transport, *options):
        """Bytes that crossed loopback in a refit, and the bytes that all replicas needed."""
        source = source_layout(3, scale=8)
        if self.version == 0:
            self.version = 1
            self.publish(source, [1], replicas, f"transport={transport}", *options)
        for _ in range(TRIES):
            self.version += 1
            before, resent = loopback_bytes(), resent_segments()
            line = self.publish(source, [self.version], replicas, f"transport={transport}", *options)[0].split(" ")
            carried = loopback_bytes() - before
            self.assertEqual(line[0], "ok", line)
            if not options:  # what moves is what is needed
                self.assertEqual(line[3], line[4], line)
            states = [replica.call("GET", "/refit")[1] for replica in replicas]
            self.assertEqual([(s["phase"], s["version"]) for s in states], [("committed", self.version)] * len(replicas))
            # Some fit into what is allowed for headers, where many connections make a busy machine resend each time.
            if resent_segments() - resent <= (len(replicas) * RESENT if options else 0):
                break
        else:
            self.skipTest(f"TCP sent segments again in each of {TRIES} refits: this machine is too busy to count on")
        needed = sum(state["bytes_due"] for state in states)
        self.assertGreater(needed, len(replicas) * 20 << 20)
        return carried, needed

    def check_exact(self, carried, needed, replicas):
        # Beyond the weights: TCP and IP headers, acknowledgements, and the control API with its documents.
        self.assertGreaterEqual(carried, needed)
        self.assertLess(carried, needed * 1.01 + CONTROL_BYTES * replicas, f"{carried} bytes for {needed} needed")

    def test_no_byte_crosses_that_nobody_needs(self):
        if self.inside():
            self.check_exact(*self.carried([self.replica("a", engine_layout(2, scale=8))], "tcp"), 1)

    def test_several_replicas_of_other_shapes_get_their_own_bytes_and_no_more(self):
        if self.inside():
            replicas = [self.replica(f"r{tp}", engine_layout(tp, scale=8)) for tp in (1, 2, 4)]
            self.check_exact(*self.carried(replicas, "tcp", "strategy=direct"), len(replicas))

    def test_siblings_on_one_host_get_from_each_other_what_crossed_once(self):
        if self.inside():
            replicas = [self.replica(f"r{tp}", engine_layout(tp, scale=8)) for tp in (1, 2, 4)]
            carried, needed = self.carried(replicas, "tcp")
            self.check_exact(carried, needed // len(replicas), len(replicas))

    def test_a_broadcast_costs_the_model_once_to_gather_and_once_for_each_member(self):
        if self.inside():
            replicas = [self.replica(f"r{tp}", engine_layout(tp, scale=8)) for tp in (1, 2)]
            own, model = rows_of_rank_0(source_layout(3, scale=8))
            # Rank 0's own part does not leave its process for the gathering; then all of it goes to each.
            gathered, needed = model - own, model - own + len(replicas) * model
            for _ in range(TRIES):
                carried, _ = self.carried(replicas, "tcp", "strategy=broadcast")
                if carried < needed + gathered:
                    break  # otherwise one was a second later than the other, and had a round of its own
            self.check_exact(carried, needed, len(replicas) + 1)

    def test_on_one_host_no_weight_crosses_a_network(self):
        if self.inside():
            carried, _ = self.carried([self.replica("a", engine_layout(2, scale=8))], "local")
            self.assertLess(carried, CONTROL_BYTES)


if __name__ == "__main__":
    unittest.main()
