"""A change restarts what it is about, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.parts import LAPTOP, of_kind, workloads
from tools.lint_chart import rendered

pytestmark = pytest.mark.helm

CHANGES = {
    "pools.decode.flags.max-num-seqs=8": {"decode"},
    "pools.prefill.resources.limits.memory=3Gi": {"prefill"},
    "pools.decode.drain.graceSeconds=60": {"decode"},
    "router.flags.queue-capacity=8": {"router"},
    "gateway.flags.max-body-bytes=4096": {"gateway"},
    "images.worker.tag=v2": {"prefill", "decode"},
    "fleet.flags.policy=chunked": {"router", "prefill", "decode"},
    "gateway.redis.builtIn.maxmemory=256mb": {"redis-gateway"},
    # What pods do not see.
    "router.replicas=3": set(),
    "pools.decode.replicas=8": set(),
    "disruption.maxUnavailable=2": set(),
    "pools.prefill.strategy.maxSurge=0,pools.prefill.strategy.maxUnavailable=1": set(),
    "networkPolicy.enabled=false": set(),
    "monitoring.rules.enabled=true": set(),
    "gateway.service.type=NodePort": set(),
    "pools.more.role=decode,pools.more.replicas=1": set(),
}


def _templates(*sets: str) -> dict[str, Any]:
    made = workloads(rendered(LAPTOP, sets=sets))
    return {name: workload["spec"]["template"] for name, workload in made.items()}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_restarts_only_what_it_is_about(change: str) -> None:
    before, after = _templates(), _templates(change)
    assert {name for name in before if after[name] != before[name]} == CHANGES[change]


def test_pods_do_not_depend_on_the_version_of_the_chart() -> None:
    texts = [str(template["metadata"]["labels"]) for template in _templates().values()]
    assert not [text for text in texts if "helm.sh/chart" in text or "app.kubernetes.io/version" in text]


def test_two_releases_of_a_namespace_share_nothing() -> None:
    first, second = (rendered(LAPTOP, release=name) for name in ("one", "two"))
    names = [{(item["kind"], item["metadata"]["name"]) for item in objects} for objects in (first, second)]
    assert not names[0] & names[1]
    for service in of_kind(first, "Service").values():
        assert service["spec"]["selector"]["app.kubernetes.io/instance"] == "one"
