"""Tiny models, and ways to run a step loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import model_zoo
from tests.engine import loop_driver
from tests.native_libraries import target, without_native

__all__ = ["both_ways", "target", "without_native"]


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what returns the checkpoint of a model of the zoo; each is made once."""

    @cache
    def directory(name: str) -> Path:
        return model_zoo.build(name, tmp_path_factory.mktemp(name))

    return directory


@pytest.fixture(scope="module", params=[False, True], ids=["at-once", "overlapped"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test of the module twice: with steps that are waited for at once, and one step behind the device.

    Tests in which turns are counted say how their driver does it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_driver, "OVERLAPS", request.param)
        yield
