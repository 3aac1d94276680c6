"""How fleets under test are made, where they keep their logs, and the model most of them serve."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from baton.fleet import Fleet
from tests.forked import Zygote
from tests.model_zoo import build


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("llama", tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


MakeFleet = Callable[..., Fleet]


@pytest.fixture
def make_fleet(zygote: Zygote) -> MakeFleet:
    """Return `Fleet` with services that are forked: none of them imports torch and transformers anew.

    Tests of the start itself use `Fleet` as it is.
    """
    return partial(Fleet, make_process=zygote.process)
