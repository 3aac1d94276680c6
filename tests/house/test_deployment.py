"""The images and the compose file hold what the checkout has, pinned as the checkout pins it."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.house.walls import MAY_IMPORT, PLANNED
from tests.ports import free_port
from tests.redis_server import redis_binary
from tools.house.source_tree import ROOT, imports, packages

WORKERS = {"prefill_worker", "decode_worker"}
IMAGES = {
    "router": {"router"},
    "gateway": {"gateway"},
    "controller": {"deploy"},
    "worker": WORKERS,
    "worker-gpu": WORKERS,
}
MODEL = "${MODEL:-/app/demo_model}"
DOCKERFILE = (ROOT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")


def _stage(name: str) -> str:
    """Return the instructions of a stage and of the stages that it begins with or copies /app from."""
    _, *blocks = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    stages = {stage: (begun, text) for begun, _, stage, text in (block.split(maxsplit=3) for block in blocks)}
    begun, text = stages[name]
    above = [begun, *re.findall(r"^COPY --from=(\S+) /app ", text, flags=re.MULTILINE)]
    return "".join([*map(_stage, stages.keys() & set(above)), text])


def _compose(file: str = "docker-compose.yml") -> dict[str, Any]:
    compose: dict[str, Any] = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    return compose


def _composed(*words: str) -> dict[str, Any]:
    """Return the services whose command begins with one of these words."""
    services = _compose()["services"]
    return {name: service for name, service in services.items() if service.get("command", [""])[0] in words}


def _needed(services: set[str]) -> set[str]:
    """The packages that these import, directly or not, and the client's, for the health check."""
    needed: set[str] = set()
    waiting = {"baton", *services}
    while waiting:
        package = waiting.pop()
        needed.add(package)
        waiting |= {found.package for found in imports(package)} & set(MAY_IMPORT) - needed
    return needed


@pytest.mark.parametrize("image", IMAGES)
def test_image_holds_every_package_that_its_services_import(image: str) -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", _stage(image), flags=re.MULTILINE))
    assert copied & packages() == _needed(IMAGES[image])


def test_build_context_lets_in_what_the_images_copy() -> None:
    let_in = set(re.findall(r"^!(\w+)\b", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE))
    copied = set(re.findall(r"^COPY (\w+)", DOCKERFILE, flags=re.MULTILINE))
    assert let_in == copied


def test_worker_image_pins_the_torch_that_the_checkout_pins() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = [name for name in project["optional-dependencies"]["worker"] if name.startswith("torch==")]
    assert set(re.findall(r"torch==[\d.]+", DOCKERFILE)) == set(pinned)


@pytest.mark.parametrize("image", ["router", "gateway", "controller"])
def test_image_without_workers_has_no_torch(image: str) -> None:
    lock = (ROOT / "deploy" / "requirements" / f"{image}.lock").read_text(encoding="utf-8")
    assert "grpcio==" in lock
    assert not re.search(r"^(torch|triton|transformers|numpy)==", lock, flags=re.MULTILINE)


def test_the_npm_lock_has_hashes_and_names_no_registry() -> None:
    lock = json.loads((ROOT / "clients" / "typescript" / "package-lock.json").read_text(encoding="utf-8"))
    packages = [package for name, package in lock["packages"].items() if name]
    assert packages
    assert all("integrity" in package and "resolved" not in package for package in packages)


@pytest.mark.parametrize("name", ["dev", "router", "gateway", "worker", "proto", "lock"])
def test_every_locked_package_has_an_exact_version_and_a_hash(name: str) -> None:
    lock = (ROOT / "deploy" / "requirements" / f"{name}.lock").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\w)", "\n".join(line for line in lock.splitlines() if line[:1] != "#"))
    assert len(entries) > 0
    for entry in entries:
        assert re.match(r"[\w.-]+(\[\w+\])?==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", entry.strip()), entry


def test_compose_runs_the_fleet_that_the_readme_describes() -> None:
    services = _compose()["services"]
    started = {name: service for name, service in services.items() if "profiles" not in service}
    commands = [service["command"] for name, service in started.items() if not name.startswith("redis")]
    modules = Counter(command[0] for command in commands)
    started_once = {"worker.startup.fetch": 1}
    assert modules == {"router": 1, "gateway": 1, "prefill_worker": 2, "decode_worker": 2} | started_once
    assert all("noeviction" in services[name]["command"] for name in ("redis", "redis-gateway"))


def test_profiles_only_add_services() -> None:
    added: dict[str, set[str]] = {}
    for name, service in _compose()["services"].items():
        for profile in service.get("profiles", ()):
            added.setdefault(profile, set()).add(name)
    assert added == {
        "two-routers": {"router-2", "envoy", "gateway-2"},
        "observed": {"prometheus", "grafana"},
    }


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", ["router", "router-2", "gateway", "gateway-2", "prefill-1", "decode-1", "model"]
)
def test_composed_flags_are_flags_that_the_service_has(name: str) -> None:
    module, *arguments = _compose()["services"][name]["command"]
    usage = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    flags = {argument for argument in arguments if argument.startswith("--")}
    assert flags <= set(re.findall(r"--[a-z-]+", usage))


def test_every_composed_service_is_watched_and_limited() -> None:
    for name, service in _compose()["services"].items():
        assert name == "model" or service["healthcheck"]["test"], name
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name


def test_composed_workers_meet_in_a_folder_and_advertise_themselves() -> None:
    workers = _composed(*WORKERS)
    assert len(workers) == 4
    for name, service in workers.items():
        assert service["volumes"] == ["worker-sockets:/run/baton", "hub-cache:/hub:ro"], name
        assert service["command"][service["command"].index("--shm-dir") + 1] == "/run/baton", name
        assert f"{name}:50061" in service["command"], name


def test_one_composed_service_fetches_the_model_for_all() -> None:
    services = _composed("router", *WORKERS)
    assert len(services) == 6
    for name, service in services.items():
        assert service["command"][service["command"].index("--model") + 1] == MODEL
        assert service["depends_on"]["model"] == {"condition": "service_completed_successfully"}, name
        assert "hub-cache:/hub:ro" in service["volumes"], name
        assert service["environment"] == {"HF_HOME": "/hub", "HF_HUB_OFFLINE": "1"}, name
    fetches = _compose()["services"]["model"]
    assert fetches["command"] == ["worker.startup.fetch", MODEL]
    assert fetches["restart"] == "no", "or it would never have completed"
    assert fetches["volumes"] == ["hub-cache:/hub"]
    assert set(fetches["environment"]) == {"HF_HOME", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"}
    assert "hub-cache" in _compose()["volumes"]


def test_routers_are_told_apart_and_known_to_envoy_and_prometheus() -> None:
    routers = _composed("router")
    ids = {service["command"][service["command"].index("--router-id") + 1] for service in routers.values()}
    assert len(ids) == len(routers) == 2
    assert all(f"{name}:50051" in service["command"] for name, service in routers.items())
    envoy = (ROOT / "deploy" / "docker" / "envoy.yaml").read_text(encoding="utf-8")
    assert re.findall(r"address: ([\w-]+), port_value: 50051", envoy) == list(routers)
    (scraped,) = _compose("deploy/docker/prometheus.yml")["scrape_configs"][0]["dns_sd_configs"]
    assert set(scraped["names"]) == set(_composed("router", "gateway", *WORKERS))


def test_doors_are_published_and_only_on_this_host() -> None:
    published = {
        name: service["ports"] for name, service in _compose()["services"].items() if "ports" in service
    }
    assert published == {
        "router": ["127.0.0.1:50051:50051"],
        "gateway": ["127.0.0.1:8000:8000"],
        "envoy": ["127.0.0.1:50050:50050"],
        "gateway-2": ["127.0.0.1:8001:8000"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }


def test_the_overlay_for_gpus_leaves_no_worker_on_a_cpu() -> None:
    overlay = _compose("deploy/docker/gpu.yml")["services"]
    assert overlay.pop("model")["image"] == "baton-worker-gpu"
    assert set(overlay) == set(_composed(*WORKERS))
    reserved = [
        device["device_ids"]
        for service in overlay.values()
        if service.get("profiles") != ["never"]
        for device in service["deploy"]["resources"]["reservations"]["devices"]
    ]
    assert reserved == [["0"], ["1"]]


def test_each_image_of_others_can_be_pinned_by_digest() -> None:
    images = {service["image"] for service in _compose()["services"].values() if "build" not in service} | {
        service["build"]["args"]["PYTHON_IMAGE"] for service in _composed("router").values()
    }
    names = {re.fullmatch(r"\$\{(\w+)_IMAGE:-[\w./-]+:[\w.-]+\}", image)[1] for image in images}  # type: ignore[index]
    assert names == {"PYTHON", "REDIS", "ENVOY", "PROMETHEUS", "GRAFANA"}
    (default,) = {image for image in images if "PYTHON" in image}
    assert f"ARG PYTHON_IMAGE={default.partition(':-')[2].rstrip('}')}\n" in DOCKERFILE


def test_the_redis_of_compose_and_chart_has_known_fixes() -> None:
    composed = {service["image"] for service in _composed("redis-server").values()}
    values = yaml.safe_load((ROOT / "deploy/helm/baton/values.yaml").read_text(encoding="utf-8"))
    (tag,) = {image.partition("-redis:")[2].rstrip("}") for image in composed}
    assert tag == values["images"]["redis"]["tag"]
    version = tag.removesuffix("-alpine")
    assert tuple(map(int, version.split("."))) >= (7, 4, 10)
    assert f"Redis {version}, which has the fixes" in (ROOT / "docs/security.md").read_text(encoding="utf-8")


def test_the_compose_version_that_the_file_needs_is_said() -> None:
    assert _compose()["name"] == "baton", "which Compose 1 refuses"
    for document in ("docker-compose.yml", "docs/start.md", "docs/compose.md"):
        assert "Compose 2.7 or newer" in (ROOT / document).read_text(encoding="utf-8"), document


@pytest.mark.integration
def test_composed_redis_serves_other_containers(tmp_path: Path) -> None:
    """In protected mode and without a password, Redis serves clients from 127.0.0.1 and ::1 alone."""
    composed: list[str] = _compose()["services"]["redis"]["command"]
    port = free_port()
    command = [redis_binary(), *composed[1:], "--port", str(port)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        try:
            with _connect_from("127.0.0.2", port, process) as connection:
                connection.sendall(b"PING\r\n")
                assert connection.recv(1024) == b"+PONG\r\n"
        finally:
            process.terminate()


def _connect_from(address: str, port: int, server: subprocess.Popen[bytes]) -> socket.socket:
    """Connect as soon as the server listens."""
    while True:
        assert server.poll() is None, "the server has ended"
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
        time.sleep(0.05)


def test_nothing_is_planned_that_is_built() -> None:
    assert not PLANNED & packages()
