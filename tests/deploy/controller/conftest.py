"""One control plane for all tests that need an API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.controller.control_plane import ControlPlane, control_plane
from tests.deploy.controller.scene import KIND


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server that knows the kind WorkerPool."""
    with control_plane(tmp_path_factory.mktemp("control_plane")) as started:
        started.kubectl("apply", "-f", str(KIND))
        started.kubectl("wait", "--for=condition=Established", "crd/workerpools.baton.dev", "--timeout=60s")
        yield started
