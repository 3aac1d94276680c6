"""The two fleets that the tests install: values of the chart for a node of two cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.kubernetes.node import RUN

SMALL: Mapping[str, Any] = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
WORKER: Mapping[str, Any] = {"requests": {"cpu": "10m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}

COMMON: Mapping[str, Any] = {
    "model": {"name": "demo_model", "inImage": "/app/demo_model"},
    "router": {"replicas": 2, "resources": SMALL, "service": {"type": "NodePort"}},
    "gateway": {
        "replicas": 2,
        "resources": SMALL,
        "service": {"type": "NodePort"},
        # No volumes: the node has nothing that provisions them.
        "redis": {"builtIn": {"storage": "", "resources": SMALL}},
    },
    "redis": {"builtIn": {"resources": SMALL}},
    "sharedMemory": {"hostPath": f"{RUN}/shared-memory"},
}


def _pool(role: str, replicas: int) -> Mapping[str, Any]:
    return {"role": role, "replicas": replicas, "resources": WORKER, "flags": {"threads": 1}}


COMPUTING: Mapping[str, Any] = {
    **COMMON,
    "fleet": {"flags": {"deterministic": True}},
    "pools": {"prefill": _pool("prefill", 1), "decode": _pool("decode", 2)},
}
"""A fleet of the demo model, whose tokens do not depend on which requests share a step."""

TIMED: Mapping[str, Any] = {
    **COMMON,
    "fleet": {"flags": {"timed": "h200-llama-3.1-8b"}},
    "pools": {"prefill": _pool("prefill", 1), "decode": _pool("decode", 2)},
}
"""A fleet at an accelerator's speed, whose tokens depend on the KV that they find."""
