"""Fleets that tests share, and keeping them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from baton.fleet import Fleet, FleetEvent, FleetSpec, Keeper
from tests.forked import Zygote

NewFleet = Callable[..., Fleet]
DEMO_MODEL = Path(__file__).parents[1] / "demo_model"


@pytest.fixture(scope="module")
def new_fleet(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> NewFleet:
    """Return a function that makes a fleet of forked services by the settings of a `FleetSpec`.

    Unless a setting says otherwise, it serves the demo model and has a folder of its own.
    """

    def make(on_event: Callable[[FleetEvent], None] = lambda _: None, **settings: Any) -> Fleet:
        own: dict[str, Path] = {"model": DEMO_MODEL}
        if "run_dir" not in settings:
            own["run_dir"] = tmp_path_factory.mktemp("fleet")
        return Fleet(FleetSpec(**(own | settings)), on_event, zygote.process)

    return make


@asynccontextmanager
async def kept(fleet: Fleet, on_event: Callable[[FleetEvent], None]) -> AsyncIterator[None]:
    """Restart what dies while the block lasts."""
    keeping = asyncio.create_task(Keeper(fleet, on_event).keep())
    try:
        yield
        assert not keeping.done(), keeping
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
