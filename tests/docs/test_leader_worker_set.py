"""The example of a LeaderWorkerSet: pods that Kubernetes accepts, and flags that workers have."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # ships no annotations
import pytest
import yaml

from tools.house.source_tree import ROOT
from tools.lint_chart import VALIDATED
from worker.startup.flags import parse_config

ACCEPTED = {
    "restartPolicy": {"RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"},
    "startupPolicy": {"LeaderCreated", "LeaderReady"},
}
"""The values of leaderworkerset.x-k8s.io/v1 that are not deprecated."""
PAGE = ROOT / "docs" / "kubernetes.md"


def example() -> dict[str, Any]:
    [text] = re.findall(r"```yaml\n(apiVersion: leaderworkerset.*?)```", PAGE.read_text(), re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_the_pods_of_the_example_are_valid() -> None:
    template = example()["spec"]["leaderWorkerTemplate"]
    for name in ("leaderTemplate", "workerTemplate"):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "pod"} | template[name]["metadata"],
            "spec": template[name]["spec"],
        }
        for version in VALIDATED:
            kubernetes_validate.validate(pod, version, strict=True)


def test_the_policies_of_the_example_are_those_that_exist() -> None:
    spec = example()["spec"]
    assert spec["startupPolicy"] in ACCEPTED["startupPolicy"]
    assert spec["leaderWorkerTemplate"]["restartPolicy"] in ACCEPTED["restartPolicy"]


def test_all_pods_of_the_example_run_one_worker_of_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    template = example()["spec"]["leaderWorkerTemplate"]
    [leader], [follower] = (
        template[name]["spec"]["containers"] for name in ("leaderTemplate", "workerTemplate")
    )
    assert leader["args"] == follower["args"]
    program, *flags = (arg.replace("$(POD)", "p").replace("$(POD_IP)", "10.0.0.1") for arg in leader["args"])
    assert program == "decode_worker"
    variables = {"LWS_LEADER_ADDRESS": "fleet-0.fleet.serving", "LWS_WORKER_INDEX": "1"}
    for name, value in (variables | {"LWS_GROUP_SIZE": str(template["size"])}).items():
        monkeypatch.setenv(name, value)
    config = parse_config([*flags, "--threads=1"], "decode", 1)  # as many as any machine has
    assert config.place is not None
    assert (config.place.rank, config.place.size) == (1, config.tensor_parallel)
