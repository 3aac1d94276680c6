"""Where fleets under test keep their logs, and the model most of them serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_zoo import build


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("llama", tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"
