"""The endpoint picker is off by default; when it is on, it finds the gateways, and the proxy finds it."""

from __future__ import annotations

import pytest

from gateway.picker.config import parse_config
from tests.chart.parts import LAPTOP, arguments, chart, of_kind, pod, selects, value_of, workloads
from tests.chart.test_channels import allowed

pytestmark = pytest.mark.helm
ON = "picker.enabled=true"


def test_without_it_there_is_no_trace_of_it() -> None:
    objects = chart(LAPTOP)
    assert not of_kind(objects, "InferencePool")
    assert "picker" not in of_kind(objects, "Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget")


def test_a_pool_selects_the_gateways_and_names_the_picker() -> None:
    objects = chart(LAPTOP, ON, "picker.inferencePool.enabled=true")
    (pool,) = of_kind(objects, "InferencePool").values()
    selected = {
        name
        for name, workload in workloads(objects).items()
        if selects(pool["spec"]["selector"]["matchLabels"], workload)
    }
    assert selected == {"gateway"}
    (container,) = pod(workloads(objects)["gateway"])["containers"]
    ports = {port["containerPort"] for port in container["ports"]}
    assert {port["number"] for port in pool["spec"]["targetPorts"]} <= ports
    reference = pool["spec"]["endpointPickerRef"]
    service = of_kind(objects, "Service")[reference["name"].removeprefix("fleet-baton-")]
    assert reference["port"]["number"] in {port["port"] for port in service["spec"]["ports"]}
    assert selects(service["spec"]["selector"], workloads(objects)["picker"])


@pytest.mark.parametrize(
    ("sets", "is_secured", "is_https"),
    [
        ((), False, False),
        (("tls.mode=hook",), True, True),
        (("tls.mode=hook", "gateway.https=false"), True, False),
    ],
)
def test_it_watches_every_gateway_by_the_name_of_its_certificate(
    sets: tuple[str, ...], is_secured: bool, is_https: bool
) -> None:
    objects = chart(LAPTOP, ON, *sets)
    given = arguments(workloads(objects)["picker"])
    assert given[0] == "gateway.picker"
    config = parse_config([*given[1 : given.index("--ca")], "--insecure-listen"] if is_secured else given[1:])
    (gateways,) = config.gateways
    assert (gateways.address, gateways.is_https) == ("fleet-baton-gateways:8000", is_https)
    assert of_kind(objects, "Service")["gateways"]["spec"]["clusterIP"] == "None"
    assert config.fleets == (("fleet-baton-routers:50051",),)
    assert ("--tls-cert" in given) == is_secured
    assert ("--insecure-listen" in given) != is_secured
    if is_secured:
        assert gateways.address.rpartition(":")[0] in arguments(workloads(objects)["certificates"])


def test_it_waits_for_streams_as_long_as_a_gateway() -> None:
    objects = workloads(chart(LAPTOP, ON))
    picker, gateway = objects["picker"], objects["gateway"]
    assert value_of(picker, "--drain-s") == value_of(gateway, "--drain-s")
    waits = {pod(workload)["terminationGracePeriodSeconds"] for workload in (picker, gateway)}
    assert waits == {330}


def test_it_may_call_gateways_and_routers_that_few_others_may() -> None:
    few = (
        f"{part}.allowFrom[0].podSelector.matchLabels.app=proxy" for part in ("router", "gateway", "picker")
    )
    objects = list(chart(LAPTOP, ON, *few))
    assert 50051 in allowed(objects, "router")["picker"]
    assert 8000 in allowed(objects, "gateway")["picker"]
    assert 9002 not in allowed(objects, "picker").get("decode", set())
