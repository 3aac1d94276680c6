"""Processes find each other, and only those that must may connect."""

from __future__ import annotations

import pytest

from baton.security.certificates import CALLS, PARTS, SERVES
from tests.chart.parts import LAPTOP, OBJECT, arguments, chart, of_kind, pod, selects, value_of, workloads
from tools.lint_chart import OVERLAYS

pytestmark = pytest.mark.helm

OWN_REDIS = ("redis.builtIn.enabled=false", "redis.passwordSecret.name=fleet-redis")


def allowed(objects: list[OBJECT], to: str) -> dict[str, set[int]]:
    """Return the ports of a part at which pods of each other part may connect."""
    made = workloads(objects)
    found: dict[str, set[int]] = {}
    for policy in of_kind(objects, "NetworkPolicy").values():
        if not selects(policy["spec"]["podSelector"]["matchLabels"], made[to]):
            continue
        for rule in policy["spec"]["ingress"]:
            ports = {port["port"] for port in rule.get("ports", [{"port": 0}])}
            for name, workload in made.items():
                peers = rule.get("from", [{"namespaceSelector": {}}])
                if any(
                    selects(peer.get("podSelector", {}).get("matchLabels", {}), workload) for peer in peers
                ):
                    found[name] = found.get(name, set()) | ports
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_service_reaches_pods_at_ports_that_they_have(overlay: str) -> None:
    objects = chart(overlay)
    for name, service in of_kind(objects, "Service").items():
        reached = [
            workload
            for workload in workloads(objects).values()
            if selects(service["spec"]["selector"], workload)
        ]
        assert reached, name
        for workload in reached:
            (container,) = pod(workload)["containers"]
            ports = {port["name"] for port in container["ports"]}
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports, name


def test_grpc_has_a_service_that_names_each_pod() -> None:
    services = of_kind(chart(), "Service")
    for name, port in (("routers", 50051), ("workers", 50061)):
        assert services[name]["spec"]["clusterIP"] == "None"
        assert port in [listed["port"] for listed in services[name]["spec"]["ports"]]


def test_everyone_talks_to_the_services_of_the_release() -> None:
    made = workloads(chart())
    for name in ("router", "prefill", "decode"):
        assert value_of(made[name], "--redis") == "redis://fleet-baton-redis:6379/0"
    assert value_of(made["gateway"], "--redis") == "redis://fleet-baton-redis-gateway:6379/0"
    assert value_of(made["gateway"], "--router") == "fleet-baton-routers:50051"
    for name, port in (("router", 50051), ("decode", 50061)):
        assert value_of(made[name], "--advertise") == f"$(POD_IP):{port}"


def test_network_policies_let_in_only_those_that_must_connect() -> None:
    objects = list(chart())
    metrics = {"router", "gateway", "prefill", "decode", "redis", "redis-gateway"}
    to_workers = allowed(objects, "decode")
    assert to_workers == {
        **{name: {9100} for name in metrics},
        "router": {50061, 9100},
        "prefill": {0, 9100},
        "decode": {0, 9100},
    }
    assert allowed(objects, "redis") == {"router": {6379}, "prefill": {6379}, "decode": {6379}}
    assert allowed(objects, "redis-gateway") == {"gateway": {6379}}


def test_gateways_may_still_call_routers_that_few_others_may() -> None:
    peers = ("router.allowFrom[0].podSelector.matchLabels.app=shop",)
    assert 50051 in allowed(list(chart(LAPTOP, *peers)), "router")["gateway"]
    assert 50051 not in allowed(list(chart(LAPTOP, *peers)), "router")["decode"]


@pytest.mark.parametrize("name", ["redis", "redis-gateway"])
def test_the_built_in_redis_refuses_rather_than_forgets(name: str) -> None:
    assert value_of(of_kind(chart(), "StatefulSet")[name], "--maxmemory-policy") == "noeviction"


def test_a_password_is_read_from_a_file_and_never_written_down() -> None:
    made = workloads(chart(LAPTOP, *OWN_REDIS, "redis.url=redis://fleet@elsewhere:6379/0"))
    assert set(made) == {"router", "gateway", "prefill", "decode", "redis-gateway"}
    for name in ("router", "prefill", "decode"):
        assert value_of(made[name], "--redis-password-file") == "/redis-password/password"
        volumes = {volume["name"]: volume for volume in pod(made[name])["volumes"]}
        assert volumes["redis-password"]["secret"]["secretName"] == "fleet-redis"


def test_a_url_in_a_secret_reaches_the_programs_by_their_environment() -> None:
    made = workloads(chart(LAPTOP, *OWN_REDIS, "redis.urlSecret.name=fleet-redis"))
    for name in ("router", "decode"):
        assert value_of(made[name], "--redis") == "$(REDIS_URL)"
        (variable,) = [
            listed for listed in pod(made[name])["containers"][0]["env"] if listed["name"] == "REDIS_URL"
        ]
        assert variable["valueFrom"]["secretKeyRef"] == {"name": "fleet-redis", "key": "url"}


@pytest.mark.parametrize("mode", ["hook", "certManager"])
def test_with_certificates_nothing_is_in_the_clear(mode: str) -> None:
    issuer = ("tls.certManager.issuer.name=ca",) if mode == "certManager" else ()
    made = workloads(chart(LAPTOP, f"tls.mode={mode}", *issuer))
    for name in ("router", "gateway", "prefill", "decode"):
        assert "--insecure-listen" not in arguments(made[name]), name
        assert value_of(made[name], "--redis").startswith("rediss://"), name
        volumes = {volume["name"]: volume for volume in pod(made[name])["volumes"]}
        part = name if name in ("router", "gateway") else "worker"
        assert volumes["tls"]["secret"]["secretName"] == f"fleet-baton-tls-{part}"
    for name in ("redis", "redis-gateway"):
        assert (value_of(made[name], "--port"), value_of(made[name], "--tls-port")) == ("0", "6379")
        assert value_of(made[name], "--tls-auth-clients") == "yes"


def test_certificates_name_the_part_and_its_hosts() -> None:
    sets = ("tls.mode=certManager", "tls.certManager.issuer.name=ca", "tls.hosts={baton.example,10.1.2.3}")
    made = {name: item["spec"] for name, item in of_kind(chart(LAPTOP, *sets), "Certificate").items()}
    assert set(made) == {f"tls-{part}" for part in PARTS}
    router = made["tls-router"]
    names = {"router.baton.internal", "localhost", "fleet-baton-router.serving.svc", "baton.example"}
    assert names <= set(router["dnsNames"])
    assert set(router["ipAddresses"]) == {"127.0.0.1", "10.1.2.3"}
    assert "baton.example" not in made["tls-worker"]["dnsNames"]
    assert made["tls-client"]["dnsNames"] == ["client.baton.internal"]
    for part, uses in PARTS.items():
        named = {SERVES: "server auth", CALLS: "client auth"}
        assert set(made[f"tls-{part}"]["usages"]) == {"digital signature", *(named[use] for use in uses)}
    assert "fleet-baton-redis-gateway" in made["tls-redis"]["dnsNames"]


def test_the_job_makes_what_the_pods_mount() -> None:
    objects = chart(LAPTOP, "tls.mode=hook", "tls.hosts={baton.example}")
    job = of_kind(objects, "Job")["certificates"]
    (role,) = of_kind(objects, "Role").values()
    made = {name for rule in role["rules"] for name in rule.get("resourceNames", [])}
    assert made == {f"fleet-baton-tls-{part}" for part in ("ca", *PARTS)}
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert value_of(job, "--secrets") == "fleet-baton-tls"
    assert {"baton.example", "fleet-baton-redis", "fleet-baton-router.serving.svc.cluster.local"} <= set(
        arguments(job)
    )


def test_prometheus_finds_every_part_and_shows_its_certificate() -> None:
    objects = chart("values-many.yaml")
    services = of_kind(objects, "Service")
    for name, monitor in of_kind(objects, "ServiceMonitor").items():
        wanted = monitor["spec"]["selector"]["matchLabels"]
        found = [
            service
            for service in services.values()
            if wanted.items() <= service["metadata"]["labels"].items()
            and "metrics" in [port["name"] for port in service["spec"]["ports"]]
        ]
        assert len(found) == 1, name
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["tlsConfig"]["serverName"] == f"{name}.baton.internal"
    (rules,) = of_kind(objects, "PrometheusRule").values()
    assert rules["spec"]["groups"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_port_names_its_protocol(overlay: str) -> None:
    """Server-side apply on Kubernetes 1.20, which is Helm's way, knows no default."""
    objects = chart(overlay)
    ports = [port for service in of_kind(objects, "Service").values() for port in service["spec"]["ports"]]
    for workload in workloads(objects).values():
        ports += pod(workload)["containers"][0]["ports"]
    assert all(port["protocol"] in ("TCP", "UDP") for port in ports)


def test_gateways_know_every_router_unless_those_nearby_are_preferred() -> None:
    near = "router.service.trafficDistribution=PreferSameZone"
    for sets, routers in (((), ["fleet-baton-routers:50051"]), ((near,), 2 * ["fleet-baton-router:50051"])):
        objects = chart(LAPTOP, *sets)
        given = arguments(workloads(objects)["gateway"])
        assert [given[place + 1] for place, flag in enumerate(given) if flag == "--router"] == routers
        services = of_kind(objects, "Service")
        preferring = {name for name, service in services.items() if "trafficDistribution" in service["spec"]}
        assert preferring == ({"router"} if sets else set())


def test_each_process_of_a_router_has_metrics_and_a_connection() -> None:
    monitored = ("router.processes=3", "networkPolicy.enabled=true", "monitoring.serviceMonitor.enabled=true")
    objects = list(chart(LAPTOP, *monitored))
    router, gateway = (workloads(objects)[name] for name in ("router", "gateway"))
    assert value_of(router, "--processes") == "3"
    named = {"metrics": 9100, "metrics-1": 9101, "metrics-2": 9102}
    (container,) = pod(router)["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": 50051, **named}
    listed = of_kind(objects, "Service")["routers"]["spec"]["ports"]
    assert {port["name"]: port["port"] for port in listed} == {"grpc": 50051, **named}
    monitors = of_kind(objects, "ServiceMonitor")
    assert [endpoint["port"] for endpoint in monitors["router"]["spec"]["endpoints"]] == list(named)
    assert [endpoint["port"] for endpoint in monitors["worker"]["spec"]["endpoints"]] == ["metrics"]
    assert set(named.values()) <= allowed(objects, "router")["redis"]
    assert arguments(gateway).count("--router") == 3
