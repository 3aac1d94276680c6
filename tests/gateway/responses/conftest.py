"""One gateway for the tests of a file."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.baton.scripted_service import (
    ScriptedRouter,
)
from tests.gateway.responses.serving import Served, said
from tests.gateway.running import running_gateway
from tests.gateway.test_openai_requests import MODEL
from tests.redis_server import redis_server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everything() -> AsyncIterator[Served]:
    with redis_server() as redis:
        async with (
            ScriptedRouter(ListModels=MODEL) as router,
            running_gateway([router.address], "--redis", redis.url) as gateway,
        ):
            yield Served(router, gateway, redis)


@pytest.fixture
def served(everything: Served) -> Served:
    everything.router.scripts[:] = [said("Hi ", "there.")]
    everything.router.heard_calls.clear()
    return everything
