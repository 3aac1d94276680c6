"""Reasons to take no step until a person changes something."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.controller.observed import Seen

GATE = "baton.dev/in-service"
"""The readiness gate, and the pod condition that opens it."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """`reason` is for programs, `message` for people."""

    reason: str
    message: str


def find_obstacle(view: Seen) -> Obstacle | None:
    """Return the first reason to leave this pool as it is, or None."""
    name, deployment = view.pool.deployment, view.deployment
    if deployment is None:
        accepted = "a Deployment of this namespace"
        return Obstacle("NoDeployment", f"spec.deployment is {name!r}; accepted: {accepted}")
    if view.shared:
        others = ", ".join(view.shared)
        return Obstacle(
            "SharedDeployment",
            f"spec.deployment is {name!r}, which {others} names too; accepted: one pool for a Deployment",
        )
    if not deployment.gated:
        return Obstacle(
            "NoReadinessGate",
            f"the template of Deployment {name} has no readiness gate {GATE}, so a rollout would not wait "
            "for routers; add it to readinessGates",
        )
    if not deployment.rolls:
        return Obstacle(
            "WrongStrategy",
            f"the strategy of Deployment {name} would delete all workers at once; accepted: RollingUpdate",
        )
    if len(view.fleet.fingerprints) > 1:
        models = ", ".join(view.fleet.fingerprints)
        return Obstacle("MixedFingerprints", f"routers have several models: {models}; accepted: one")
    return None
