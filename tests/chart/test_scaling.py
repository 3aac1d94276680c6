"""Pools that KEDA scales: it asks the routers, and may."""

from __future__ import annotations

import pytest

from router.api.scaler_service import asked_of
from scheduling.scaling.need import Goal
from tests.chart.parts import LAPTOP, chart, of_kind, workloads
from tools.lint_chart import Refused, rendered

pytestmark = pytest.mark.helm

SCALED = (
    "pools.decode.scaling.minReplicas=2",
    "pools.decode.scaling.maxReplicas=8",
)


def test_a_scaled_pool_asks_the_routers_by_their_service() -> None:
    objects = chart(LAPTOP, *SCALED)
    (scaled,) = of_kind(objects, "ScaledObject").values()
    spec = scaled["spec"]
    (trigger,) = spec["triggers"]
    assert spec["scaleTargetRef"]["name"] == "fleet-baton-decode"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 8)
    address = trigger["metadata"]["scalerAddress"]
    assert address == "fleet-baton-router.serving.svc:50051"
    services = of_kind(objects, "Service")
    assert 50051 in {port["port"] for port in services["router"]["spec"]["ports"]}
    assert asked_of(trigger["metadata"]) == ("decode", Goal())
    assert "authenticationRef" not in trigger


def test_routers_are_told_what_share_of_promises_to_keep() -> None:
    scaling = {"minReplicas": 2, "maxReplicas": 8, "goodput": 0.95}
    objects = rendered(LAPTOP, values={"pools": {"decode": {"scaling": scaling}}})
    (scaled,) = of_kind(objects, "ScaledObject").values()
    assert asked_of(scaled["spec"]["triggers"][0]["metadata"]) == ("decode", Goal(0.95))


def test_an_upgrade_leaves_a_scaled_pools_replicas_alone() -> None:
    made = workloads(chart(LAPTOP, *SCALED))
    assert "replicas" not in made["decode"]["spec"]
    assert all("replicas" in made[name]["spec"] for name in ("router", "gateway"))
    assert not of_kind(chart(LAPTOP), "ScaledObject", "TriggerAuthentication")


def test_keda_shows_the_operators_certificate() -> None:
    objects = chart(LAPTOP, *SCALED, "tls.mode=hook")
    (scaled,) = of_kind(objects, "ScaledObject").values()
    (trigger,) = scaled["spec"]["triggers"]
    proofs = of_kind(objects, "TriggerAuthentication")
    proof = proofs[trigger["authenticationRef"]["name"].removeprefix("fleet-baton-")]
    given = {item["parameter"]: (item["name"], item["key"]) for item in proof["spec"]["secretTargetRef"]}
    secret = "fleet-baton-tls-operator"
    assert given == {
        "caCert": (secret, "ca.crt"),
        "tlsClientCert": (secret, "tls.crt"),
        "tlsClientKey": (secret, "tls.key"),
    }


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("pools.decode.scaling.minReplicas=9",), "pools.decode.scaling.minReplicas is 9"),
        (("pools.more.role=decode", "pools.more.replicas=1"), "pools.more has role decode too"),
        (("pools.decode.scaling.goodput=1",), "goodput"),
        (("router.door.secret=door", "tls.mode=hook"), "tls.requireClientCertificates is false"),
        (
            (
                "tls.mode=secrets",
                *(f"tls.secrets.{part}={part}" for part in ("router", "worker", "gateway", "redis")),
            ),
            "tls.secrets.operator is missing",
        ),
    ],
)
def test_scaling_that_cannot_work_is_refused(sets: tuple[str, ...], said: str) -> None:
    with pytest.raises(Refused, match=said):
        rendered(LAPTOP, sets=(*SCALED, *sets))
