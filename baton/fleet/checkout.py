"""Find the services' code, a redis-server and the gateway's packages on this machine."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

from baton.fleet.processes.errors import CheckoutNotFound, GatewayNotInstalled, RedisServerNotFound

SERVICES = ("router", "prefill_worker", "decode_worker")
_GATEWAY_NEEDS = ("fastapi", "httptools", "python_multipart", "redis", "uvicorn")
"""Packages that clients lack; the other services need a part of them."""


def find_checkout() -> Path:
    """Return the folder with the services: the one with this package, else the nearest one above here."""
    here = Path.cwd()
    candidates = [Path(__file__).resolve().parents[2], here, *here.parents]
    for folder in candidates:
        if all((folder / service / "__main__.py").is_file() for service in SERVICES):
            return folder
    raise CheckoutNotFound(list(dict.fromkeys(candidates[:2])))


def find_redis_server() -> Path:
    """Return the newer one of the redis-server on PATH and that of the Python environment."""
    bundled = Path(sys.executable).parent / "redis-server"
    on_path = shutil.which("redis-server")
    candidates = {Path(on_path)} if on_path is not None else set()
    if bundled.is_file():
        candidates.add(bundled)
    if not candidates:
        raise RedisServerNotFound(bundled.parent)
    return candidates.pop() if len(candidates) == 1 else max(candidates, key=_redis_version)


def check_gateway() -> None:
    """Raise `GatewayNotInstalled` unless this Python has what the gateway needs."""
    missing = [name for name in _GATEWAY_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise GatewayNotInstalled(missing)


def _redis_version(server: Path) -> tuple[int, ...]:
    run = subprocess.run([server, "--version"], capture_output=True, text=True, check=False, timeout=10)
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", run.stdout)
    return tuple(int(part) for part in found.groups()) if found else (0,)
