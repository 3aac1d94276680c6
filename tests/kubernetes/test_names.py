"""The names that the cluster's DNS serves, from what a watch of the API server prints."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.names import events, hosts

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
objects = st.dictionaries(st.text(), json_values, min_size=1, max_size=4)


@given(st.lists(st.tuples(objects, st.sampled_from([None, 4]))))
def test_events_are_split_however_they_are_printed(printed: list[tuple[dict[str, Any], int | None]]) -> None:
    text = "\n".join(json.dumps(event, indent=indent) for event, indent in printed)
    assert list(events(text.splitlines(keepends=True))) == [event for event, _ in printed]


def _service(**spec: object) -> dict[str, Any]:
    return {"spec": spec}


def _endpoints(ready: list[dict[str, str]], unready: list[dict[str, str]] | None = None) -> dict[str, Any]:
    return {"subsets": [{"addresses": ready, "notReadyAddresses": unready}]}


def test_a_service_has_its_own_address() -> None:
    services = {("default", "router"): _service(clusterIP="10.96.0.7")}
    endpoints = {("default", "router"): _endpoints([{"ip": "10.244.0.3"}])}
    assert hosts(services, endpoints) == [("router.default.svc.cluster.local", "10.96.0.7")]


def test_a_headless_service_has_those_of_its_ready_endpoints() -> None:
    services = {("a", "redis"): _service(clusterIP="None")}
    endpoints = {
        ("a", "redis"): _endpoints([{"ip": "10.244.0.3", "hostname": "redis-0"}], [{"ip": "10.244.0.4"}])
    }
    name = "redis.a.svc.cluster.local"
    assert hosts(services, endpoints) == [(f"redis-0.{name}", "10.244.0.3"), (name, "10.244.0.3")]


def test_unready_endpoints_are_published_where_the_service_says_so() -> None:
    services = {("a", "workers"): _service(clusterIP="None", publishNotReadyAddresses=True)}
    endpoints = {("a", "workers"): _endpoints([], [{"ip": "10.244.0.4"}])}
    assert hosts(services, endpoints) == [("workers.a.svc.cluster.local", "10.244.0.4")]


def test_a_service_without_endpoints_has_no_name() -> None:
    assert hosts({("a", "workers"): _service(clusterIP="None")}, {}) == []
