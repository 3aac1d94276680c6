"""The controller is off by default; when it is on, workers wait for it and it may do only what it needs."""

from __future__ import annotations

import pytest

from deploy.controller.config import parse_config
from deploy.controller.obstacles import GATE
from tests.chart.parts import LAPTOP, arguments, chart, of_kind, pod

pytestmark = pytest.mark.helm
ON = "controller.enabled=true"


def test_without_it_nothing_waits_for_it() -> None:
    objects = chart(LAPTOP)
    assert not of_kind(objects, "WorkerPool", "Role", "RoleBinding")
    assert "controller" not in of_kind(objects, "Deployment")
    assert "readinessGates" not in pod(of_kind(objects, "Deployment")["decode"])


def test_each_pool_has_a_deployment_with_the_gate() -> None:
    objects = chart(LAPTOP, ON)
    deployments, pools = of_kind(objects, "Deployment"), of_kind(objects, "WorkerPool")
    assert set(pools) == {"prefill", "decode"}
    for name, pool in pools.items():
        assert pool["spec"]["deployment"] == deployments[name]["metadata"]["name"]
        assert pool["spec"]["replicas"] == deployments[name]["spec"]["replicas"]
        assert pod(deployments[name])["readinessGates"] == [{"conditionType": GATE}]
    others = [deployments[name] for name in ("router", "gateway", "controller")]
    assert not any("readinessGates" in pod(other) for other in others)


def test_only_its_own_pod_may_use_the_api_and_only_in_the_namespace() -> None:
    objects = chart(LAPTOP, ON)
    (role,) = of_kind(objects, "Role").values()
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list", "watch", "patch"}
    writable = {name for rule in role["rules"] if "patch" in rule["verbs"] for name in rule["resources"]}
    assert writable == {"workerpools/status", "deployments/scale", "pods/status"}
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    deployments = of_kind(objects, "Deployment")
    with_token = {name for name, item in deployments.items() if pod(item)["automountServiceAccountToken"]}
    assert with_token == {"controller"}


@pytest.mark.parametrize("tls", ["none", "hook"])
def test_its_flags_are_those_it_has(tls: str) -> None:
    given = arguments(of_kind(chart(LAPTOP, ON, f"tls.mode={tls}"), "Deployment")["controller"])
    assert given[0] == "deploy.controller"
    flags = given[1 : given.index("--ca")] if "--ca" in given else given[1:]  # its files are not here
    assert parse_config(flags).routers == ("fleet-baton-routers:50051",)
    assert ("--ca" in given) == (tls == "hook")
