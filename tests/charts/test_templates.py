# SPDX-License-Identifier: Apache-2.0
"""What the templates make of values: order, memory, identities, mounts, policies."""
import os
import shutil
import tempfile
import unittest

import chart

CPU = "cpu-native"


def setUpModule():
    chart.require_tools()


class Sidecar(unittest.TestCase):
    def test_native_sidecar_is_an_init_container_that_restarts(self):
        spec = chart.pod_spec(chart.example(CPU))
        self.assertEqual([c["name"] for c in spec["initContainers"]], ["refitd"])
        self.assertEqual(spec["initContainers"][0]["restartPolicy"], "Always")
        self.assertEqual([c["name"] for c in spec["containers"]], ["engine"])

    def test_without_native_sidecars_it_is_an_ordinary_container(self):
        spec = chart.pod_spec(chart.example(CPU, "--set", "nativeSidecar=false"))
        self.assertNotIn("initContainers", spec)
        refitd = chart.container(spec, "refitd")
        self.assertNotIn("restartPolicy", refitd)
        self.assertEqual([c["name"] for c in spec["containers"]], ["engine", "refitd"])

    def test_pre_stop_waits_as_long_as_the_engine_may_take_and_the_pod_longer(self):
        spec = chart.pod_spec(chart.example(CPU, "--set", "engine.terminationSeconds=50,sidecar.drainSeconds=7"))
        command = chart.container(spec, "refitd")["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual(command, ["/opt/refit/bin/refit", "drain", "--admin", "127.0.0.1:7071", "--timeout", "50s"])
        self.assertGreaterEqual(spec["terminationGracePeriodSeconds"], 50 + 7)

    def test_probes_go_to_the_admin_port_of_the_pod(self):
        spec = chart.pod_spec(chart.example(CPU, "--set", "sidecar.admin.port=9001"))
        refitd = chart.container(spec, "refitd")
        for probe, path in (("startupProbe", "/startupz"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
            self.assertEqual(refitd[probe]["httpGet"], {"path": path, "port": 9001})  # no host: Pod Security forbids it
        self.assertIn("--admin=0.0.0.0:9001", refitd["args"])

    def test_the_startup_probe_allows_the_time_that_was_set(self):
        spec = chart.pod_spec(chart.example(CPU, "--set", "sidecar.startup.limitSeconds=120,sidecar.startup.periodSeconds=5"))
        probe = chart.container(spec, "refitd")["startupProbe"]
        self.assertEqual(probe["periodSeconds"] * probe["failureThreshold"], 120)

    def test_further_options_reach_refitd(self):
        refitd = chart.container(chart.pod_spec(chart.example(CPU, "--set", "sidecar.options.streams=4")), "refitd")
        self.assertIn("--streams=4", refitd["args"])

    def test_siblings_are_the_other_pods_by_the_name_in_their_certificates(self):
        arguments = chart.container(chart.pod_spec(chart.example(CPU)), "refitd")["args"]
        self.assertEqual(len([a for a in arguments if a.startswith("--siblings=dns:")]), 1)
        self.assertIn("-replicas.serving.svc:7070", next(a for a in arguments if a.startswith("--siblings=")))
        off = chart.container(chart.pod_spec(chart.example(CPU, "--set", "sidecar.siblings.enabled=false")), "refitd")["args"]
        self.assertEqual([a for a in off if a.startswith("--siblings")], [])

    def test_an_ipv6_host_is_bracketed(self):
        refitd = chart.container(chart.pod_spec(chart.example(CPU, "--set", "sidecar.control.host=::")), "refitd")
        self.assertIn("--control=[::]:7070", refitd["args"])


class Memory(unittest.TestCase):
    def limit(self, name, *arguments):
        resources = chart.container(chart.pod_spec(chart.example(name, *arguments)), "refitd")["resources"]
        self.assertEqual(resources["limits"]["memory"], resources["requests"]["memory"])
        return int(resources["limits"]["memory"])

    def test_limit_is_slots_times_capacity_and_overhead(self):
        self.assertEqual(self.limit(CPU), 2 * (128 << 20) + (512 << 20))
        self.assertEqual(self.limit(CPU, "--set", "weights.slots=3,weights.slotBytes=64Gi,weights.overhead=1Gi,engine.ranks=4"),
                         4 * 3 * (64 << 30) + (1 << 30))

    def test_a_sum_beyond_two_to_the_53_keeps_its_digits(self):
        self.assertEqual(self.limit(CPU, "--set-string", "weights.slotBytes=9007199254740993", "--set",
                                    "weights.slots=16,weights.overhead=1Mi"),
                         16 * 9007199254740993 + (1 << 20))

    def test_on_gpus_host_memory_is_the_staging(self):
        self.assertEqual(self.limit("native-dra"), (4 << 30) + (512 << 20))
        self.assertEqual(self.limit("native-dra", "--set", "weights.memory=host"), 2 * 2 * (40 << 30) + (512 << 20))

    def test_a_larger_limit_of_yours_is_kept(self):
        resources = chart.container(chart.pod_spec(chart.example(CPU, "--set", "sidecar.resources.limits.memory=2Gi")), "refitd")
        self.assertEqual(resources["resources"]["limits"]["memory"], "2Gi")


class Security(unittest.TestCase):
    def test_every_container_is_of_the_restricted_profile(self):
        for name in chart.EXAMPLES:
            for manifest in chart.example(name):
                if manifest["kind"] not in ("Deployment", "Pod"):
                    continue
                spec = manifest["spec"].get("template", {}).get("spec", manifest["spec"])
                self.assertFalse(spec["automountServiceAccountToken"])
                self.assertTrue(spec["securityContext"]["runAsNonRoot"])
                for c in spec.get("initContainers", []) + spec["containers"]:
                    context = c["securityContext"]
                    with self.subTest(example=name, container=c["name"]):
                        self.assertFalse(context["allowPrivilegeEscalation"])
                        self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
                        self.assertEqual(context["seccompProfile"], {"type": "RuntimeDefault"})
                        self.assertTrue(context["runAsNonRoot"])
                        self.assertNotEqual(context["runAsUser"], 0)
                        if c["name"] != "engine":
                            self.assertTrue(context["readOnlyRootFilesystem"])

    def test_two_user_ids_and_one_group(self):
        spec = chart.pod_spec(chart.example(CPU))
        refitd, engine = (chart.container(spec, n)["securityContext"] for n in ("refitd", "engine"))
        self.assertNotEqual(refitd["runAsUser"], engine["runAsUser"])
        self.assertEqual(refitd["runAsGroup"], engine["runAsGroup"])
        self.assertEqual(spec["securityContext"]["fsGroup"], engine["runAsGroup"])

    def test_the_engine_can_not_write_where_the_socket_is(self):
        spec = chart.pod_spec(chart.example(CPU))
        mounts = {c: {m["name"]: m for m in chart.container(spec, c)["volumeMounts"]} for c in ("refitd", "engine")}
        self.assertTrue(mounts["engine"]["refit-run"]["readOnly"])
        self.assertNotIn("readOnly", mounts["refitd"]["refit-run"])
        self.assertTrue(mounts["refitd"]["refit-checkpoints"]["readOnly"])
        self.assertNotIn("refit-tokens", mounts["engine"])

    def test_every_mount_has_its_volume(self):
        for name in chart.EXAMPLES:
            spec = chart.pod_spec(chart.example(name))
            volumes = [v["name"] for v in spec["volumes"]]
            self.assertEqual(len(volumes), len(set(volumes)))
            used = {m["name"] for c in spec.get("initContainers", []) + spec["containers"] for m in c.get("volumeMounts", [])}
            self.assertEqual(set(volumes), used, name)

    def test_tls_and_tokens_reach_refitd(self):
        refitd = chart.container(chart.pod_spec(chart.example("tls-secret", "--set", "auth.tokens.secret=t")), "refitd")
        for option in ("tls-cert=/etc/refit/tls/tls.crt", "tls-key=/etc/refit/tls/tls.key", "tls-client-ca=/etc/refit/tls/ca.crt",
                       "token-file=/etc/refit/tokens/tokens"):
            self.assertIn("--" + option, refitd["args"])
        self.assertNotIn("--insecure-control=true", refitd["args"])

    def test_bulk_bytes_have_tls_and_a_name_of_the_certificate(self):
        manifests = chart.example("native-dra")
        args = chart.container(chart.pod_spec(manifests), "refitd")["args"]
        name = next(a.split("=", 1)[1] for a in args if a.startswith("--data-tls-name="))
        self.assertIn(name, chart.only(manifests, "Certificate")["spec"]["dnsNames"])
        self.assertFalse([a for a in args if a.startswith("--data-tls=")])
        args = chart.container(chart.pod_spec(chart.example("native-dra", "--set", "tls.data=false")), "refitd")["args"]
        self.assertIn("--data-tls=off", args)
        args = chart.container(chart.pod_spec(chart.example("native-dra", "--set", "tls.dataName=pool.example")), "refitd")["args"]
        self.assertIn("--data-tls-name=pool.example", args)

    def test_secrets_are_mounted_as_directories_so_that_rotation_reaches_them(self):
        for name in ("tls-secret", CPU):
            for c in chart.pod_spec(chart.example(name))["initContainers"]:
                self.assertFalse([m for m in c["volumeMounts"] if "subPath" in m])

    def test_the_certificate_names_the_service_and_feeds_the_pod(self):
        manifests = chart.example("native-dra")
        certificate = chart.only(manifests, "Certificate")["spec"]
        service = chart.only(manifests, "Service", "rel-replicas")["metadata"]["name"]
        self.assertIn(f"{service}.serving.svc", certificate["dnsNames"])
        volume = next(v for v in chart.pod_spec(manifests)["volumes"] if v["name"] == "refit-tls")
        self.assertEqual(volume["secret"]["secretName"], certificate["secretName"])
        self.assertEqual(certificate["issuerRef"]["name"], "refit-ca")

    def test_clients_without_a_certificate_may_show_a_token(self):
        args = chart.container(chart.pod_spec(chart.example(CPU)), "refitd")["args"]
        self.assertIn("--tls-client-optional=true", args)
        args = chart.container(chart.pod_spec(chart.example("tls-secret")), "refitd")["args"]
        self.assertFalse([a for a in args if "optional" in a or "token" in a])

    def test_insecure_is_passed_on_by_name_only(self):
        spec = chart.pod_spec(chart.example(CPU, "--set", "tls.mode=none,auth.tokens.secret=,auth.insecure=true"))
        self.assertIn("--insecure-control=true", chart.container(spec, "refitd")["args"])


class Network(unittest.TestCase):
    def test_replicas_are_found_before_they_are_ready(self):
        service = chart.only(chart.example(CPU), "Service", "rel-replicas")["spec"]
        self.assertEqual(service["clusterIP"], "None")
        self.assertTrue(service["publishNotReadyAddresses"])

    def test_only_trainers_and_replicas_reach_the_control_port(self):
        manifests = chart.example("tls-secret")
        rules = chart.only(manifests, "NetworkPolicy")["spec"]["ingress"]
        control = [r for r in rules if {"port": 7070} in r["ports"]]
        self.assertEqual(len(control), 1)
        peers = control[0]["from"]
        labels = chart.only(manifests, "Deployment")["spec"]["selector"]["matchLabels"]
        self.assertIn({"podSelector": {"matchLabels": labels}}, peers)
        self.assertEqual(len(peers), 2)
        self.assertEqual([r["ports"] for r in rules if "from" not in r], [[{"port": 8000}]])

    def test_selectors_select_the_pods(self):
        manifests = chart.example("native-dra")
        labels = chart.only(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
        selectors = [chart.only(manifests, "Service", n)["spec"]["selector"] for n in ("rel", "rel-replicas")]
        selectors += [chart.only(manifests, kind)["spec"]["selector"]["matchLabels"] for kind in ("PodDisruptionBudget", "PodMonitor")]
        selectors.append(chart.only(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"])
        for selector in selectors:
            self.assertLessEqual(selector.items(), labels)

    def test_the_monitor_names_a_port_of_the_sidecar(self):
        manifests = chart.example("native-dra")
        port = chart.only(manifests, "PodMonitor")["spec"]["podMetricsEndpoints"][0]["port"]
        self.assertIn(port, [p["name"] for p in chart.container(chart.pod_spec(manifests), "refitd")["ports"]])

    def test_the_test_pod_is_none_of_the_replicas(self):
        manifests = chart.example(CPU)
        selector = chart.only(manifests, "Service", "rel-replicas")["spec"]["selector"].items()
        self.assertFalse(selector <= chart.only(manifests, "Pod")["metadata"]["labels"].items())

    def test_one_replica_gets_no_disruption_budget(self):
        kinds = [m["kind"] for m in chart.example(CPU, "--set", "replicas=1")]
        self.assertNotIn("PodDisruptionBudget", kinds)


class Gpu(unittest.TestCase):
    def test_one_claim_is_listed_by_both_containers(self):
        manifests = chart.example("native-dra")
        spec = chart.pod_spec(manifests)
        name = spec["resourceClaims"][0]["name"]
        for c in ("refitd", "engine"):
            self.assertEqual(chart.container(spec, c)["resources"]["claims"], [{"name": name}])
        made = chart.only(manifests, "ResourceClaimTemplate")
        self.assertEqual(made["metadata"]["name"], spec["resourceClaims"][0]["resourceClaimTemplateName"])
        self.assertEqual(made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"], 2)
        self.assertTrue([t for t in spec["tolerations"] if t["key"] == "nvidia.com/gpu"])

    def test_a_claim_template_of_yours_is_used(self):
        manifests = chart.example("native-dra", "--set", "gpu.claimTemplate=mine")
        self.assertEqual(chart.pod_spec(manifests)["resourceClaims"][0]["resourceClaimTemplateName"], "mine")
        self.assertNotIn("ResourceClaimTemplate", [m["kind"] for m in manifests])

    def test_exec_runs_both_in_the_container_that_has_the_gpu(self):
        spec = chart.pod_spec(chart.example("native-exec"))
        self.assertEqual([c["name"] for c in spec["initContainers"]], ["refit-install"])
        self.assertNotIn("restartPolicy", spec["initContainers"][0])
        self.assertEqual([c["name"] for c in spec["containers"]], ["engine"])
        engine = spec["containers"][0]
        command = engine["command"]
        self.assertEqual(command[:2], ["/opt/refit/bin/refit", "exec"])
        self.assertEqual(command[command.index("--") + 1:], ["python3", "-m", "example.engine"])
        env = {e["name"]: e.get("value") for e in engine["env"]}
        self.assertEqual(env["REFIT_MEMORY"], "cuda")
        self.assertNotIn("REFIT_PROTECTION", env)
        self.assertEqual(env["REFIT_SLOT_BYTES"], str(20 << 30))
        order = [e["name"] for e in engine["env"]]
        self.assertLess(order.index("POD_IP"), order.index("REFIT_ADVERTISE"))  # or $(POD_IP) stays as it is
        mounts = {m["name"]: m for m in engine["volumeMounts"]}
        self.assertEqual(mounts["refit-program"]["mountPath"], "/opt/refit")
        self.assertNotIn("readOnly", mounts["refit-run"])
        self.assertIn("refit-tokens", mounts)

    def test_slots_are_where_refitd_and_the_engine_share_gpus(self):
        for name, options, memory in (("native-dra", (), "cuda"), ("native-dra", ("weights.memory=host",), "host"),
                                      (CPU, (), "host"), ("vllm", (), "host")):
            with self.subTest(example=name, options=options):
                sets = [word for option in options for word in ("--set", option)]
                refitd = chart.container(chart.pod_spec(chart.example(name, *sets)), "refitd")
                self.assertIn(f"--memory={memory}", refitd["args"])
        spec = chart.pod_spec(chart.example("native-exec", "--set", "weights.memory=host", "--set-string",
                                            "engine.resources.limits.memory=64Gi"))
        env = {e["name"]: e.get("value") for e in spec["containers"][0]["env"]}
        self.assertEqual((env["REFIT_MEMORY"], env["REFIT_PROTECTION"]), ("host", "seal"))

    def test_shared_memory_is_one_volume_in_both(self):
        spec = chart.pod_spec(chart.example("native-dra"))
        for c in ("refitd", "engine"):
            self.assertIn({"name": "refit-shm", "mountPath": "/dev/shm"}, chart.container(spec, c)["volumeMounts"])


class Engines(unittest.TestCase):
    def test_engines_that_load_weights_themselves_are_driven_over_http(self):
        for kind in ("vllm", "sglang"):
            spec = chart.pod_spec(chart.example(kind, "--set", "engine.port=9000"))
            refitd, engine = chart.container(spec, "refitd"), chart.container(spec, "engine")
            self.assertIn(f"--engine={kind}=http://127.0.0.1:9000", refitd["args"])
            self.assertTrue([a for a in refitd["args"] if a.startswith("--layout=/checkpoints/")])
            self.assertEqual([a for a in refitd["args"] if "engine-load" in a], ["--engine-load=rpc"] if kind == "vllm" else [])
            self.assertIn("--engine-dir=/run/refit-weights", refitd["args"])
            # The same path in both, and the engine only reads.
            self.assertIn({"name": "refit-weights", "mountPath": "/run/refit-weights"}, refitd["volumeMounts"])
            self.assertIn({"name": "refit-weights", "mountPath": "/run/refit-weights", "readOnly": True}, engine["volumeMounts"])

    def test_their_slots_are_in_host_memory(self):
        resources = chart.container(chart.pod_spec(chart.example("vllm")), "refitd")["resources"]
        self.assertEqual(int(resources["limits"]["memory"]), 2 * (66 << 30) + (512 << 20))
        self.assertNotIn("claims", resources)

    def test_native_engines_are_not(self):
        args = chart.container(chart.pod_spec(chart.example(CPU)), "refitd")["args"]
        self.assertFalse([a for a in args if a.startswith("--engine")])

    def test_the_engine_is_told_the_socket(self):
        engine = chart.container(chart.pod_spec(chart.example(CPU)), "engine")
        self.assertIn({"name": "REFIT_SOCKET", "value": "/run/refit/refitd.sock"}, engine["env"])


class Library(unittest.TestCase):
    """The named templates in another chart."""

    def test_paste_into_a_pod_of_another_chart(self):
        with tempfile.TemporaryDirectory() as directory:
            parent = os.path.join(directory, "chat")
            shutil.copytree(os.path.join(os.path.dirname(__file__), "parent"), parent)
            shutil.copytree(chart.CHART, os.path.join(parent, "charts", "refit"))
            manifests = chart.render(chart=parent)
            spec = chart.only(manifests, "StatefulSet")["spec"]["template"]["spec"]
            refitd = chart.container(spec, "refitd")
            self.assertIn(f"--slot-bytes={1 << 30}", refitd["args"])
            self.assertEqual(refitd["restartPolicy"], "Always")
            self.assertNotIn("Deployment", [m["kind"] for m in manifests])
            labels = chart.only(manifests, "StatefulSet")["spec"]["template"]["metadata"]["labels"].items()
            self.assertLessEqual(chart.only(manifests, "Service")["spec"]["selector"].items(), labels)
            import kubernetes_validate
            for manifest in manifests:
                kubernetes_validate.validate(manifest, "1.34", strict=True)


if __name__ == "__main__":
    unittest.main()
