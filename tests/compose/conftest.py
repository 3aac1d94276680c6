"""One composed fleet, built from the checkout, for all tests of the folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.compose.engine import (
    ENVOY,
    EVERYTHING,
    PROMETHEUS,
    ROOT,
    check_compose,
    compose,
    docker_engine,
    ensure_base_images,
    torch_arguments,
    write_deterministic,
)

BUILT = ("router", "gateway", "prefill-1")
"""One service of each image."""


@pytest.fixture(scope="session")
def images() -> Iterator[None]:
    """The images of the checkout, built."""
    with docker_engine():
        check_compose()
        ensure_base_images(ENVOY, PROMETHEUS)
        with torch_arguments() as environment:
            subprocess.run(
                ["docker", "compose", "-f", "docker-compose.yml", "-f", "tests/compose/build.yml", "build",
                 *BUILT],
                cwd=ROOT,
                env={**os.environ, **environment},
                check=True,
            )  # fmt: skip
        yield


@pytest.fixture(scope="session")
def fleet(images: None) -> Iterator[None]:
    """The fleet of docker-compose.yml, healthy; nothing of it is left afterwards."""
    write_deterministic()
    compose(*EVERYTHING, "down", "--volumes", "--timeout", "5")
    try:
        compose("up", "--detach", "--no-build", "--wait", timeout_s=600.0)
        yield
    finally:
        compose(*EVERYTHING, "down", "--volumes", "--timeout", "5")


@pytest.fixture(scope="session")
def two_routers(fleet: None) -> None:
    """The same fleet, with what the profile `two-routers` adds."""
    compose("--profile", "two-routers", "up", "--detach", "--no-build", "--wait", timeout_s=600.0)


@pytest.fixture(scope="session")
def observed(fleet: None) -> None:
    """The same fleet with Prometheus, but without Grafana, which has no stand-in."""
    compose("--profile", "observed", "up", "--detach", "--no-build", "--wait", "prometheus", timeout_s=600.0)
