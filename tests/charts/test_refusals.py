# SPDX-License-Identifier: Apache-2.0
"""Values that must not render, each with the words that tell what to do."""
import unittest

import chart

BASE = ["-f", chart.EXAMPLES["cpu-native"]]


def setUpModule():
    chart.require_tools()


class Refusals(unittest.TestCase):
    def refused(self, values, *words, base=None):
        arguments = list(BASE if base is None else base)
        for value in values:
            arguments += ["--set-json" if "=[" in value or "={" in value else "--set", value]
        code, out, err = chart.template(*arguments)
        self.assertNotEqual(code, 0, f"{values} rendered:\n{out[:500]}")
        for word in words:
            self.assertIn(word, err)

    def test_no_capacity(self):
        self.refused(["weights.slotBytes="], "weights.slotBytes", "no capacity")
        self.refused([], "weights.slotBytes", base=[])

    def test_memory_limit_below_slots_times_capacity(self):
        self.refused(["sidecar.resources.limits.memory=256Mi"], "sidecar.resources.limits.memory", "268435456", "805306368")
        # one byte short
        self.refused(['sidecar.resources={"limits":{"memory":"805306367"}}'], "is below what refitd takes")
        self.refused(["sidecar.resources.limits.memory=805306367"], "is below what refitd takes")
        code, _, err = chart.template(*BASE, "--set-string", "sidecar.resources.limits.memory=805306368")
        self.assertEqual(code, 0, err)

    def test_device_plugin_gpus_in_both_containers(self):
        both = ['sidecar.resources.limits={"nvidia.com/gpu":"1"}', 'engine.resources.limits={"nvidia.com/gpu":"1"}']
        self.refused(both, "both", "gpu.mode=dra", "gpu.mode=exec")
        self.refused(both[:1], "sidecar.resources", "another one than the engine's")
        for resource in ("amd.com/gpu", "nvidia.com/mig-1g.10gb", "gpu.intel.com/i915"):
            self.refused([f'sidecar.resources.limits={{"{resource}":"1"}}'] if "intel" not in resource else
                         ['sidecar.resources.limits={"nvidia.com/gpu.shared":"1"}'], "sidecar.resources")

    def test_device_plugin_gpus_beside_a_claim(self):
        self.refused(["gpu.mode=dra", 'engine.resources.limits={"nvidia.com/gpu":"1"}'], "gpu.mode is dra")

    def test_native_engine_with_a_gpu_that_refitd_can_not_reach(self):
        self.refused(['engine.resources.limits={"nvidia.com/gpu":"1"}'], "gpu.mode is none")

    def test_slots_on_gpus_that_refitd_does_not_have(self):
        self.refused(["weights.memory=cuda"], "weights.memory", "gpu.mode is none")
        self.refused(["gpu.mode=dra", "engine.ranks=2"], "gpu.count", "1 GPUs for 2 ranks")
        self.refused(["weights.memory=disk"], "memory")

    def test_exec_without_a_gpu_or_a_command(self):
        self.refused(["gpu.mode=exec"], "asks for no GPU")
        self.refused(["gpu.mode=exec", "engine.command=[]", 'engine.resources.limits={"nvidia.com/gpu":"1"}'], "engine.command")

    def test_exec_without_memory_for_refitd(self):
        exec_mode = ["gpu.mode=exec", 'engine.resources.limits={"nvidia.com/gpu":"1","memory":"2Gi"}']
        self.refused(exec_mode, "engine.resources.limits.memory", str((2 << 30) + (512 << 20)))

    def test_control_beyond_loopback_without_authentication(self):
        self.refused(["auth.tokens.secret=", "tls.mode=none"], "sidecar.control.host", "auth.insecure")
        self.refused(["tls.mode=none"], "in the clear", "auth.plaintextTokens")
        # TLS alone says who the server is, not who calls.
        self.refused(["auth.tokens.secret=", "tls.clientAuth=false"], "without authentication")
        for good in (["sidecar.control.host=127.0.0.1", "tls.mode=none"], ["auth.insecure=true", "tls.mode=none"], ["tls.mode=secret"]):
            code, _, err = chart.template(*BASE, "--set", ",".join(["auth.tokens.secret=", *good]))
            self.assertEqual(code, 0, err)

    def test_tls_without_its_source(self):
        self.refused(["tls.secret="], "tls.secret")
        self.refused(["tls.mode=certManager"], "tls.certManager.issuer")

    def test_one_user_id_for_both(self):
        self.refused(["engine.uid=10001"], "sidecar.uid and engine.uid")
        code, _, err = chart.template(*BASE, "--set", "engine.uid=10001,sidecar.options.protection=seal")
        self.assertEqual(code, 0, err)

    def test_initial_checkpoint_without_a_volume(self):
        self.refused(["weights.checkpoints.volume=null"], "weights.checkpoints.volume")

    def test_engines_over_http_need_a_layout_one_rank_and_no_claim(self):
        base = ["-f", chart.EXAMPLES["vllm"]]
        self.refused(["engine.driver.layout="], "engine.driver.layout", base=base)
        self.refused(["engine.ranks=2"], "engine.ranks", base=base)
        self.refused(["gpu.mode=dra", 'engine.resources.limits={"memory":"64Gi"}'], "needs no GPU", base=base)

    def test_no_engine_image(self):
        self.refused(["engine.image.repository="], "engine.image.repository", "workload=false")


class Schema(unittest.TestCase):
    def test_wrong_values_are_refused_by_the_schema(self):
        wrong = [
            "weights.slotByte=1Gi", "bogus=1", "weights.slots=1", "weights.slots=17", "weights.slots=two", "weights.slotBytes=1GiB",
            "weights.slotBytes=1.5Gi", "weights.slotBytes=-1", "weights.overhead=", "engine.kind=tgi", "engine.ranks=0",
            "engine.port=70000", "sidecar.control.port=0", "sidecar.control.host=localhost", "sidecar.nice=20", "sidecar.uid=0",
            "engine.uid=0", "sidecar.logLevel=verbose", "sidecar.options.slots=4", "sidecar.options.insecure-control=true",
            "sidecar.options.UPPER=1", "gpu.mode=shared", "gpu.count=0", "tls.mode=on", "tls.certManager.kind=Other",
            "image.digest=sha256:12", "image.pullPolicy=Sometimes", "nativeSidecar=maybe", "replicas=-1", "podMonitor.interval=15",
            "weights.initial.checkpoint=/etc/passwd", "weights.checkpoints.mountPath=relative", "service.type=ExternalName",
            "engine.name=refitd", "weights.initial.version=0", "sidecar.resources.limit.memory=1Gi",
        ]
        for value in wrong:
            with self.subTest(value=value):
                code, _, err = chart.template(*BASE, "--set", value)
                self.assertNotEqual(code, 0, f"{value} was taken")
                self.assertIn("schema", err)


if __name__ == "__main__":
    unittest.main()
