"""A hub of each test's own, and an empty cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub import Hub, serving


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub()) as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hf"
