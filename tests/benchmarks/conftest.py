"""Fleets that benchmarks start, with services that are forked: none imports torch and transformers anew."""

from __future__ import annotations

from functools import partial

import pytest

from baton.fleet import Fleet
from benchmarks.fleets import targets
from benchmarks.gpu import processes
from tests.forked import Zygote


@pytest.fixture
def forked_services(monkeypatch: pytest.MonkeyPatch, zygote: Zygote) -> None:
    """`test_soak.py` executes its services, as users of the benchmarks do."""
    for module in (targets, processes):
        monkeypatch.setattr(module, "Fleet", partial(Fleet, make_process=zygote.process))
