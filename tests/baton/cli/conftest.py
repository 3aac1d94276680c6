"""A scripted fleet for the commands."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.baton.scripted_service import ScriptedRouter
from tests.patience import PATIENCE_S


@pytest.fixture
def router() -> Iterator[ScriptedRouter]:
    """Served from a loop of its own, since a command runs one of its own too."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    scripted = ScriptedRouter()
    asyncio.run_coroutine_threadsafe(scripted.__aenter__(), loop).result(PATIENCE_S)
    yield scripted
    asyncio.run_coroutine_threadsafe(scripted.stop(), loop).result(PATIENCE_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
