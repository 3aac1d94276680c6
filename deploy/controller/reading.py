"""Objects of the API server, as it sends them in JSON, converted to what the controller keeps of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deploy.controller.observed import Deployment, Pod, Pool, Standing
from deploy.controller.obstacles import GATE

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
EXIT_FLEET = 5
"""The exit code of a worker that does not fit the fleet."""
MAX_TROUBLE = 300

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod, with the ReplicaSet that owns it. `grace_s` is set while the pod is being deleted."""

    pod: Pod
    owner: str
    grace_s: float | None


@dataclass(frozen=True, slots=True)
class SetRecord:
    """A ReplicaSet: its Deployment, and the hash and the revision of its template."""

    deployment: str
    template_hash: str
    revision: str


@dataclass(frozen=True, slots=True)
class DeploymentRecord:
    """A Deployment whose `revision` is a number; "" until its controller has seen the last change."""

    deployment: Deployment
    revision: str


def pool_of(body: Body) -> Pool:
    spec = body["spec"]
    return Pool(body["metadata"]["name"], spec["deployment"], spec["replicas"])


def pod_of(body: Body) -> PodRecord:
    meta, status = body["metadata"], body.get("status") or {}
    conditions = {entry["type"]: entry for entry in status.get("conditions") or ()}
    ready = conditions.get("Ready", {}).get("status") == "True"
    gated = _is_gated(body["spec"])
    trouble, exit_code = _trouble(status)
    return PodRecord(
        Pod(
            name=meta["name"],
            revision=(meta.get("labels") or {}).get(HASH, ""),
            standing=_standing(conditions.get(GATE, {}), is_open=ready and not gated),
            ready=ready,
            gated=gated,
            terminating="deletionTimestamp" in meta,
            trouble=trouble,
            foreign=exit_code == EXIT_FLEET,
        ),
        owner_of(body),
        meta.get("deletionGracePeriodSeconds", 0) if "deletionTimestamp" in meta else None,
    )


def set_of(body: Body) -> SetRecord:
    meta = body["metadata"]
    return SetRecord(
        owner_of(body),
        (meta.get("labels") or {}).get(HASH, ""),
        (meta.get("annotations") or {}).get(REVISION, ""),
    )


def deployment_of(body: Body) -> DeploymentRecord:
    meta, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    replicas = spec.get("replicas", 1)
    strategy = spec.get("strategy") or {}
    is_current = status.get("observedGeneration", 0) >= meta.get("generation", 1)
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    return DeploymentRecord(
        Deployment(
            replicas=replicas,
            revision="",
            max_unavailable=_max_unavailable(strategy.get("rollingUpdate") or {}, replicas),
            gated=_is_gated(spec["template"]["spec"]),
            rolls=strategy.get("type", "RollingUpdate") == "RollingUpdate",
            selector=",".join(f"{name}={label}" for name, label in sorted(labels.items())),
        ),
        (meta.get("annotations") or {}).get(REVISION, "") if is_current else "",
    )


def owner_of(body: Body) -> str:
    """Return the name of the controlling owner, or ""."""
    owners = body["metadata"].get("ownerReferences") or ()
    return next((owner["name"] for owner in owners if owner.get("controller")), "")


def _is_gated(pod_spec: Body) -> bool:
    return any(gate["conditionType"] == GATE for gate in pod_spec.get("readinessGates") or ())


def _standing(condition: Body, *, is_open: bool) -> Standing:
    """Read the condition; a pod without the gate is in service when it is ready."""
    if condition.get("reason") == Standing.RETIRING.value:
        return Standing.RETIRING
    return Standing.IN_SERVICE if condition.get("status") == "True" or is_open else Standing.OUT


def _trouble(status: Body) -> tuple[str, int]:
    """Return why the pod's containers do not run, and the exit code of the last one that ended."""
    message, exit_code = "", 0
    for entry in status.get("conditions") or ():
        if entry["type"] == "PodScheduled" and entry["status"] == "False":
            message = entry.get("message", "")
    preparing = [each for each in status.get("initContainerStatuses") or () if not _is_done(each)]
    for container in [*(status.get("containerStatuses") or ()), *preparing]:
        state, last = container.get("state") or {}, container.get("lastState") or {}
        ended = state.get("terminated") or last.get("terminated") or {}
        waiting = state.get("waiting") or {}
        if "running" not in state:
            exit_code = ended.get("exitCode", 0)
            message = ended.get("message") or waiting.get("message") or waiting.get("reason") or message
    return " ".join(message.split())[:MAX_TROUBLE], exit_code


def _is_done(container: Body) -> bool:
    """Return whether an init container has done its work."""
    ended = (container.get("state") or {}).get("terminated") or {}
    return bool(ended) and ended.get("exitCode", 0) == 0


def _max_unavailable(rolling: Body, replicas: int) -> int:
    """Return pods, as a Deployment rounds them: 1 if it could make no step otherwise."""
    surge = math.ceil(_share(rolling.get("maxSurge", "25%"), replicas))
    return math.floor(_share(rolling.get("maxUnavailable", "25%"), replicas)) or (0 if surge else 1)


def _share(value: int | str, replicas: int) -> float:
    return value if isinstance(value, int) else replicas * int(value.rstrip("%")) / 100
