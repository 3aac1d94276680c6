"""Pods run without rights, end after their drain, and are ready when calls may go to them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.parts import LAPTOP, arguments, chart, of_kind, pod, selects, value_of, workloads
from tools.lint_chart import OLDEST, OVERLAYS, Refused

pytestmark = pytest.mark.helm

SECURED = ("tls.mode=hook",)


def readiness(name: str, *sets: str, kubernetes: str = "1.37") -> dict[str, Any]:
    (container,) = pod(workloads(chart(LAPTOP, *sets, kubernetes=kubernetes))[name])["containers"]
    probe: dict[str, Any] = container["readinessProbe"]
    return probe


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_container_is_root_or_writes_to_its_image(overlay: str) -> None:
    for name, workload in workloads(chart(overlay)).items():
        spec = pod(workload)
        assert spec["securityContext"]["runAsNonRoot"], name
        for container in spec["containers"]:
            confined = container["securityContext"]
            assert confined["readOnlyRootFilesystem"], name
            assert not confined["allowPrivilegeEscalation"], name
            assert confined["capabilities"]["drop"] == ["ALL"], name
            assert container["resources"]["limits"]["memory"], name


def test_only_the_job_that_makes_certificates_may_use_the_api() -> None:
    objects = chart(LAPTOP, *SECURED)
    allowed = [
        name for name, workload in workloads(objects).items() if pod(workload)["automountServiceAccountToken"]
    ]
    assert allowed == ["certificates"]
    (binding,) = of_kind(objects, "RoleBinding").values()
    assert [subject["name"] for subject in binding["subjects"]] == ["fleet-baton-certificates"]
    (role,) = of_kind(objects, "Role").values()
    assert {resource for rule in role["rules"] for resource in rule["resources"]} == {"secrets"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_leave_no_variables_in_pods(overlay: str) -> None:
    assert not any(pod(workload)["enableServiceLinks"] for workload in workloads(chart(overlay)).values())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_kubelet_waits_longer_than_the_drain(overlay: str) -> None:
    for name, workload in of_kind(chart(overlay), "Deployment").items():
        spec = pod(workload)
        hook = spec["containers"][0].get("lifecycle")
        first = 0 if hook is None else int(hook["preStop"]["exec"]["command"][-1].split("(")[1].rstrip(")"))
        drain = float(value_of(workload, "--drain-s"))
        assert spec["terminationGracePeriodSeconds"] >= first + drain + 5, name


def test_callers_of_routers_and_gateways_forget_them_before_they_stop() -> None:
    deployments = of_kind(chart(), "Deployment")
    hooked = {name for name, workload in deployments.items() if "lifecycle" in pod(workload)["containers"][0]}
    # Routers hear from a worker itself that it leaves.
    assert hooked == {"router", "gateway"}


@pytest.mark.parametrize("name", ["router", "decode"])
def test_ready_means_routable_by_the_probe_that_the_cluster_has(name: str) -> None:
    port = {"router": 50051, "decode": 50061}[name]
    assert readiness(name)["grpc"] == {"port": port}
    asked = readiness(name, kubernetes=OLDEST)["exec"]["command"]
    assert asked == ["/venv/bin/python", "-m", "baton.cli", "health", f"127.0.0.1:{port}"]
    secured = readiness(name, *SECURED)["exec"]["command"]
    assert secured[len(asked) :] == ["--ca", "/tls/ca.crt", "--cert", "/tls/tls.crt", "--key", "/tls/tls.key"]


def test_a_gateway_is_ready_while_a_router_serves() -> None:
    assert readiness("gateway")["httpGet"] == {"path": "/health", "port": "http", "scheme": "HTTP"}
    assert readiness("gateway", *SECURED)["httpGet"]["scheme"] == "HTTPS"


def test_no_probe_kills_a_process_that_serves_or_starts_slowly() -> None:
    for overlay in OVERLAYS:
        for workload in workloads(chart(overlay, kubernetes=OLDEST)).values():
            (container,) = pod(workload)["containers"]
            assert "livenessProbe" not in container
            start = container.get("startupProbe", {"periodSeconds": 2, "failureThreshold": 100_000})
            assert start["periodSeconds"] * start["failureThreshold"] > 86_400


def test_no_process_checks_what_does_not_listen_yet() -> None:
    for workload in workloads(chart(kubernetes=OLDEST)).values():
        (container,) = pod(workload)["containers"]
        assert ("startupProbe" in container) == ("exec" in container["readinessProbe"])


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize(("kubernetes", "api"), [("1.20", "policy/v1beta1"), ("1.21", "policy/v1")])
def test_disruptions_take_one_pod_of_a_part_at_a_time(overlay: str, kubernetes: str, api: str) -> None:
    objects = chart(overlay, kubernetes=kubernetes)
    budgets, deployments = of_kind(objects, "PodDisruptionBudget"), of_kind(objects, "Deployment")
    assert set(budgets) == set(deployments)
    for name, budget in budgets.items():
        assert budget["apiVersion"] == api
        assert budget["spec"]["maxUnavailable"] == 1
        chosen = [
            other
            for other, workload in deployments.items()
            if selects(budget["spec"]["selector"]["matchLabels"], workload)
        ]
        assert chosen == [name]


def test_the_pods_of_a_pool_are_spread_among_themselves() -> None:
    deployments = of_kind(chart("values-many.yaml"), "Deployment")
    for name, workload in deployments.items():
        spread = pod(workload)["topologySpreadConstraints"]
        assert [rule["topologyKey"] for rule in spread] == [
            "topology.kubernetes.io/zone",
            "kubernetes.io/hostname",
        ]
        for rule in spread:
            selector = rule["labelSelector"]["matchLabels"]
            assert [other for other, made in deployments.items() if selects(selector, made)] == [name]


def test_a_full_node_gives_up_a_gpu_before_it_starts_the_next() -> None:
    deployments = of_kind(chart("values-one-gpu-node.yaml"), "Deployment")
    assert deployments["decode"]["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert deployments["router"]["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_pool_gets_the_devices_and_pages_that_it_names() -> None:
    spec = pod(of_kind(chart("values-many.yaml"), "Deployment")["decode-h200"])
    (container,) = spec["containers"]
    limits = container["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["rdma/hca"], limits["hugepages-2Mi"]) == (1, 1, "1Gi")
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes[mounted["/dev/hugepages"]]["emptyDir"] == {"medium": "HugePages-2Mi"}
    assert volumes[mounted["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}


def test_a_worker_computes_with_the_cores_that_it_asks_for() -> None:
    made = of_kind(chart(LAPTOP, "pools.prefill.flags.threads=3"), "Deployment")
    assert (value_of(made["decode"], "--threads"), value_of(made["prefill"], "--threads")) == (
        "$(CORES)",
        "3",
    )
    (cores,) = [given for given in pod(made["decode"])["containers"][0]["env"] if given["name"] == "CORES"]
    assert cores["valueFrom"]["resourceFieldRef"]["resource"] == "requests.cpu"


def test_workers_of_a_node_meet_in_a_folder_that_they_can_write_to() -> None:
    spec = pod(of_kind(chart(), "Deployment")["decode"])
    (prepares,) = spec["initContainers"]
    assert prepares["securityContext"]["runAsUser"] == 0
    assert prepares["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert prepares["volumeMounts"] == [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    volume = next(volume for volume in spec["volumes"] if volume["name"] == "shared-memory")
    assert volume["hostPath"] == {"path": "/dev/shm/baton", "type": "DirectoryOrCreate"}


@pytest.mark.parametrize("storage_class", ["", "fast"])
def test_a_kv_disk_is_a_volume_with_room_for_its_budget(storage_class: str) -> None:
    sets = ["pools.decode.kvDisk.megabytes=8192", f"pools.decode.kvDisk.storageClass={storage_class}"]
    deployments = workloads(chart(LAPTOP, *sets))
    decode = deployments["decode"]
    path, _, blocks = value_of(decode, "--kv-disk").rpartition("/")
    assert blocks, "the volume itself belongs to root, and the worker refuses it"
    assert value_of(decode, "--kv-disk-mb") == "8192"
    (container,) = pod(decode)["containers"]
    (name,) = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == path]
    (volume,) = [volume for volume in pod(decode)["volumes"] if volume["name"] == name]
    if storage_class:
        claim = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
        assert claim["storageClassName"] == storage_class
        size = claim["resources"]["requests"]["storage"]
    else:
        size = volume["emptyDir"]["sizeLimit"]
    assert size == "9075Mi"
    assert "--kv-disk" not in arguments(deployments["prefill"])


def test_workers_on_gpus_have_both_tiers() -> None:
    """The KV memory of a GPU does not count against the container's limit."""
    flags = {"kv-memory-mb": 60000, "kv-host-memory-mb": 1000}
    sets = [f"pools.decode.flags.{flag}={value}" for flag, value in flags.items()]
    sets += ["pools.decode.gpu.count=1", "pools.decode.kvDisk.megabytes=8192", "fleet.flags.dtype=float32"]
    decode = workloads(chart(LAPTOP, *sets))["decode"]
    assert value_of(decode, "--kv-host-memory-mb") == "1000"
    assert value_of(decode, "--kv-disk-mb") == "8192"


def test_claims_for_pods_are_refused_where_kubernetes_has_none() -> None:
    sets = ("pools.decode.kvDisk.megabytes=100", "pools.decode.kvDisk.storageClass=fast")
    with pytest.raises(Refused, match=r"pools\.decode\.kvDisk\.storageClass is set, but Kubernetes"):
        chart(LAPTOP, *sets, kubernetes=OLDEST)
