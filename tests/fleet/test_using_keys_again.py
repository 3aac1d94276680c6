"""An `Idempotency-Key` that comes again once its router has forgotten it, while workers have not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import httpx
import pytest
import pytest_asyncio

from baton.fleet import Fleet
from router.api.service import InferenceService
from router.core.core import RouterCore
from router.core.model.state import CoreConfig
from router.intake.helpers.tokenizer_pool import TokenizerPool
from router.intake.model_facts import read_model_facts
from router.intake.preprocessor import Preprocessor
from router.links.metrics import RouterMetrics
from router.links.shell import Shell
from runtime.state.store import Store
from tests.fleet.driving import metric, until
from tests.fleets import DEMO_MODEL, NewFleet
from tests.gateway.running import running_gateway
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

USES = 5
"""A worker would refuse an attempt of the second one, if it counted attempts over all uses, and three of the
fourth."""
REFUSED = "baton_refused_commands_total"
RETENTION_S = 0.2
BODY = {"prompt": [3, 5, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(new_fleet: NewFleet) -> AsyncIterator[Fleet]:
    async with new_fleet(timed="demo-cpu", gateways=1) as fleet:
        yield fleet


async def ask(http: httpx.AsyncClient, key: str) -> str:
    """Return the text of one request with this key."""
    answer = await http.post("/v1/completions", json=BODY, headers={"Idempotency-Key": key})
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


async def num_refused(fleet: Fleet) -> float:
    """Return how many commands the workers have refused."""
    return sum([await metric(fleet, name, REFUSED) for name in fleet.spec.worker_names])


@asynccontextmanager
async def forgetful_router(fleet: Fleet) -> AsyncIterator[tuple[RouterCore, str]]:
    """A router with its address, which remembers for a moment what has ended."""
    facts, store = read_model_facts(DEMO_MODEL), await Store.connect(fleet.redis_url)
    core = RouterCore(CoreConfig("forgetful", retention_s=RETENTION_S, router_incarnation="1"))
    shell = Shell(core, store, RouterMetrics(), facts.name)
    pool = TokenizerPool(facts.tokenizer_file, 1, facts.chat_template)
    server = grpc.aio.server()
    preprocessor = Preprocessor(shell, facts, pool)
    InferenceService(shell, preprocessor, facts).add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    running = asyncio.create_task(shell.run())
    try:
        yield core, f"127.0.0.1:{port}"
    finally:
        await server.stop(grace=None)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await shell.store_calls.settle()
        preprocessor.close()
        pool.close()
        await store.close()


async def test_a_key_is_served_however_often_it_was_forgotten(fleet: Fleet) -> None:
    async with forgetful_router(fleet) as (core, address), running_gateway([address]) as gateway:

        async def has_workers() -> bool:
            return len(core.state.fleet.workers) == 2

        async def is_forgotten() -> bool:
            return not core.state.by_sid

        await until(has_workers, "both workers have joined")
        texts = set()
        for _ in range(USES):
            texts.add(await ask(gateway.http, "again"))
            await until(is_forgotten, "the request is forgotten")
        assert len(texts) == 1
        assert await num_refused(fleet) == 0


async def test_a_key_is_served_by_each_process_of_a_router(fleet: Fleet) -> None:
    async with httpx.AsyncClient(base_url=fleet.gateway_urls[0], timeout=PATIENCE_S) as http:
        texts = {await ask(http, "restarted")}
        for _ in range(USES - 1):
            fleet.process("router-0").kill()
            await fleet.revive("router-0")
            texts.add(await ask(http, "restarted"))
        assert len(texts) == 1
        assert await num_refused(fleet) == 0
