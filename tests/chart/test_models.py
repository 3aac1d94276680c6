"""A model's folder is at one path in every pod, wherever it comes from."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.parts import LAPTOP, of_kind, pod, value_of
from tools.lint_chart import problems, rendered

pytestmark = pytest.mark.helm

SOURCES: dict[str, dict[str, Any]] = {
    "pvc": {"pvc": {"claim": "models", "subPath": "llama"}},
    "hostPath": {"hostPath": "/srv/llama"},
    "image": {"image": "models/llama:1"},
    "init": {
        "init": {
            "image": "fetch:1",
            "command": ["fetch"],
            "args": ["llama", "/models/llama"],
            "sizeLimit": "20Gi",
        }
    },
}
EXPECTED = {
    "pvc": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
    "hostPath": {"hostPath": {"path": "/srv/llama", "type": "Directory"}},
    "image": {"image": {"reference": "models/llama:1"}},
    "init": {"emptyDir": {"sizeLimit": "20Gi"}},
}


COMMIT = "0123456789abcdef0123456789abcdef01234567"
CACHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "claim": ({"claim": "hub"}, {"persistentVolumeClaim": {"claimName": "hub"}}),
    "hostPath": ({"hostPath": "/srv/hub"}, {"hostPath": {"path": "/srv/hub", "type": "Directory"}}),
    "own": ({"sizeLimit": "20Gi"}, {"emptyDir": {"sizeLimit": "20Gi"}}),
    "none": ({}, {"emptyDir": {}}),
}


def _objects(model: dict[str, Any], **others: Any) -> list[dict[str, Any]]:
    return rendered(LAPTOP, values={"model": {"name": "llama", "inImage": "", **model}, **others})


def _model_volume(workload: dict[str, Any]) -> dict[str, Any]:
    (found,) = [volume for volume in pod(workload)["volumes"] if volume["name"] == "model"]
    return {key: value for key, value in found.items() if key != "name"}


@pytest.mark.parametrize("source", SOURCES)
def test_each_source_is_mounted_where_the_programs_look(source: str) -> None:
    objects = _objects(SOURCES[source])
    assert not list(problems(objects, "1.37"))
    for name in ("router", "prefill", "decode"):
        workload = of_kind(objects, "Deployment")[name]
        assert value_of(workload, "--model") == "/models/llama"
        assert _model_volume(workload) == EXPECTED[source]
        mounts = {mount["mountPath"]: mount for mount in pod(workload)["containers"][0]["volumeMounts"]}
        mount = mounts["/models" if source == "init" else "/models/llama"]
        assert (mount["name"], mount["readOnly"]) == ("model", True)
        assert mount.get("subPath") == ("llama" if source == "pvc" else None)


def test_an_init_container_writes_the_folder_before_the_start() -> None:
    for workload in of_kind(_objects(SOURCES["init"]), "Deployment").values():
        if "initContainers" in pod(workload):
            fetch = pod(workload)["initContainers"][0]
            assert (fetch["name"], fetch["image"], fetch["command"]) == ("model", "fetch:1", ["fetch"])
            assert fetch["volumeMounts"] == [{"name": "model", "mountPath": "/models"}]


def test_a_pool_may_find_the_same_model_elsewhere() -> None:
    pools = {"decode": {"model": {"hostPath": "/mnt/fast/llama"}}}
    made = of_kind(_objects(SOURCES["pvc"], pools=pools), "Deployment")
    assert _model_volume(made["decode"])["hostPath"]["path"] == "/mnt/fast/llama"
    assert "persistentVolumeClaim" in _model_volume(made["prefill"])
    assert {value_of(made[name], "--model") for name in ("router", "prefill", "decode")} == {"/models/llama"}


def test_the_demo_model_comes_with_the_images() -> None:
    for workload in of_kind(rendered(LAPTOP), "Deployment").values():
        assert not [volume for volume in pod(workload)["volumes"] if volume["name"] == "model"]


@pytest.mark.parametrize("cache", CACHES)
def test_every_pod_fetches_the_same_commit_of_a_model_of_the_hub(cache: str) -> None:
    given, volume = CACHES[cache]
    hub = {"revision": COMMIT, "endpoint": "https://hub.example", "token": {"secret": "hub", "key": "t"}}
    objects = _objects({"name": "org/llama", "hub": {**hub, "cache": given}})
    assert not list(problems(objects, "1.37"))
    for name in ("router", "prefill", "decode"):
        workload = of_kind(objects, "Deployment")[name]
        container = pod(workload)["containers"][0]
        assert value_of(workload, "--model") == f"org/llama@{COMMIT}"
        assert _model_volume(workload) == volume
        assert {"name": "model", "mountPath": "/hub"} in container["volumeMounts"]
        env = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
        assert (env["HF_HOME"], env["HF_ENDPOINT"]) == ("/hub", "https://hub.example")
        assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "t"}}


def test_a_public_model_of_the_hub_needs_no_secret() -> None:
    made = of_kind(_objects({"name": "org/llama", "hub": {"revision": COMMIT}}), "Deployment")
    for name in ("router", "prefill", "decode"):
        names = {each["name"] for each in pod(made[name])["containers"][0]["env"]}
        assert "HF_HOME" in names
        assert not {"HF_TOKEN", "HF_ENDPOINT"} & names
