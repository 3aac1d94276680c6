"""Parts of a rendered chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tools.lint_chart import VALIDATED, rendered

LAPTOP = "values-laptop.yaml"
OBJECT = dict[str, Any]


@cache
def chart(overlay: str = LAPTOP, *sets: str, kubernetes: str = VALIDATED[-1]) -> Sequence[OBJECT]:
    """Return the objects of the release `fleet`, whose names begin with `fleet-baton`."""
    return rendered(overlay, sets=sets, kubernetes=kubernetes)


def of_kind(objects: Sequence[OBJECT], *kinds: str) -> dict[str, OBJECT]:
    """Return the objects of these kinds by their names, without the release's."""
    return {
        item["metadata"]["name"].removeprefix("fleet-baton-"): item
        for item in objects
        if item["kind"] in kinds
    }


def workloads(objects: Sequence[OBJECT]) -> dict[str, OBJECT]:
    """Return everything that makes pods."""
    return of_kind(objects, "Deployment", "StatefulSet", "Job")


def pod(workload: OBJECT) -> OBJECT:
    """Return the specification of its pods."""
    spec: OBJECT = workload["spec"]["template"]["spec"]
    return spec


def arguments(workload: OBJECT) -> list[str]:
    """Return the arguments of its only container."""
    (container,) = pod(workload)["containers"]
    return list(container["args"])


def value_of(workload: OBJECT, flag: str) -> str:
    """Return the argument after this flag."""
    given = arguments(workload)
    return given[given.index(flag) + 1]


def selects(selector: Mapping[str, str], workload: OBJECT) -> bool:
    """Return whether a selector selects its pods."""
    return selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()
