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


SERVING = ("router", "prefill", "decode")
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


def _fetching(workload: dict[str, Any], name: str = "model") -> dict[str, Any]:
    """Return the init container of this name."""
    (found,) = [each for each in pod(workload)["initContainers"] if each["name"] == name]
    return dict(found)


def _environment(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


@pytest.mark.parametrize("cache", CACHES)
def test_every_pod_fetches_the_same_commit_of_a_model_of_the_hub(cache: str) -> None:
    given, volume = CACHES[cache]
    hub = {"revision": COMMIT, "endpoint": "https://hub.example", "token": {"secret": "hub", "key": "t"}}
    objects = _objects({"name": "org/llama", "hub": {**hub, "cache": given}})
    assert not list(problems(objects, "1.37"))
    for name in SERVING:
        workload = of_kind(objects, "Deployment")[name]
        assert value_of(workload, "--model") == f"org/llama@{COMMIT}"
        assert _model_volume(workload) == volume
        fetching, (serving,) = _fetching(workload), pod(workload)["containers"]
        assert fetching["args"][-1] == f"org/llama@{COMMIT}"
        assert {"name": "model", "mountPath": "/hub"} in fetching["volumeMounts"]
        env = _environment(fetching)
        assert (env["HF_HOME"], env["HF_ENDPOINT"]) == ("/hub", "https://hub.example")
        assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "t"}}
        assert {"name": "model", "mountPath": "/hub", "readOnly": True} in serving["volumeMounts"]
        env = _environment(serving)
        assert (env["HF_HOME"], env["HF_HUB_OFFLINE"]) == ("/hub", "1")
        assert not {"HF_TOKEN", "HF_ENDPOINT"} & env.keys()


def test_a_container_that_fetches_has_no_more_rights_and_resources() -> None:
    made = of_kind(_objects({"name": "org/llama", "hub": {"revision": COMMIT}}), "Deployment")
    for name in SERVING:
        fetching, (serving,) = _fetching(made[name]), pod(made[name])["containers"]
        for field in ("image", "securityContext", "terminationMessagePolicy"):
            assert fetching[field] == serving.get(field, "FallbackToLogsOnError"), (name, field)
        assert fetching["resources"]["limits"]["memory"] == serving["resources"]["limits"]["memory"], name


def test_pods_fetch_what_they_need() -> None:
    def programs(**flags: Any) -> dict[str, list[str]]:
        model = {"name": "org/llama", "hub": {"revision": COMMIT}}
        made = of_kind(_objects(model, fleet={"flags": flags}), "Deployment")
        return {name: _fetching(made[name])["args"][:-1] for name in ("router", "decode")}

    facts = ["runtime.hub", "--files", "facts"]
    assert programs() == {"router": facts, "decode": ["worker.startup.fetch"]}
    proving = ["worker.startup.fetch", "--prove-model"]
    assert programs(**{"prove-model": True}) == {"router": facts, "decode": proving}
    assert programs(**{"random-weights": 0}) == {"router": facts, "decode": facts}


def test_a_draft_model_of_the_hub_is_fetched_as_well() -> None:
    draft = f"org/small@{COMMIT}"
    pools = {"decode": {"flags": {"draft-model": draft}}}
    made = of_kind(_objects({"name": "org/llama", "hub": {"revision": COMMIT}}, pools=pools), "Deployment")
    assert _fetching(made["decode"], "draft-model")["args"] == ["worker.startup.fetch", draft]
    assert [each["name"] for each in pod(made["prefill"])["initContainers"]].count("draft-model") == 0


def test_a_file_of_a_model_of_the_hub_is_served() -> None:
    hub = {"revision": COMMIT, "file": "llama-Q4_K_M.gguf"}
    made = of_kind(_objects({"name": "org/llama", "hub": hub}), "Deployment")
    for name in SERVING:
        assert value_of(made[name], "--model") == f"org/llama@{COMMIT}:llama-Q4_K_M.gguf"
        assert _fetching(made[name])["args"][-1] == f"org/llama@{COMMIT}:llama-Q4_K_M.gguf"


def test_a_public_model_of_the_hub_needs_no_secret() -> None:
    made = of_kind(_objects({"name": "org/llama", "hub": {"revision": COMMIT}}), "Deployment")
    for name in SERVING:
        env = _environment(_fetching(made[name]))
        assert "HF_HOME" in env
        assert not {"HF_TOKEN", "HF_ENDPOINT"} & env.keys()
