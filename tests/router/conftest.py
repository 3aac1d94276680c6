"""A router over real gRPC and a real Redis, with scripted workers behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from baton.operators.v1 import fleet_pb2_grpc
from baton.v1 import inference_pb2_grpc
from router.api.error_interceptor import ErrorInterceptor, UnknownMethods
from router.api.fleet_service import FleetService
from router.api.scaler_service import ScalerService
from router.api.service import InferenceService
from router.core.core import RouterCore
from router.core.model.state import CoreConfig
from router.intake.helpers.tokenizer_pool import TokenizerPool
from router.intake.model_facts import ModelFacts, read_model_facts
from router.intake.preprocessor import Preprocessor
from router.links.metrics import RouterMetrics
from router.links.shell import Shell
from runtime.state.store import Store
from tests.patience import PATIENCE_S
from tests.router.scripted_worker import Handoffs, ScriptedWorker
from tests.runtime.state.patient import wait_patiently

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    "{% if words %}{{ words | join(' ') }} {% endif %}{% if add_generation_prompt %}assistant{% endif %}"
)


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition, looking often; a test that waits in vain fails with a timeout."""
    async with asyncio.timeout(timeout_s):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the router and its Redis stand still for a second, the router is not to turn requests away."""
    wait_patiently(monkeypatch)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory as the router reads it: words are tokens, and there are no weights."""
    path = tmp_path_factory.mktemp("models") / "model"
    path.mkdir()
    vocabulary = {"<eos>": 0, "<unk>": 1} | {f"w{i}": i for i in range(2, 100)}
    vocabulary |= {word: 100 + i for i, word in enumerate(("user", "assistant", "system"))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "architectures": ["Scripted"],
        "vocab_size": 128,
        "max_position_embeddings": 8192,
        "eos_token_id": 0,
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return path


@pytest.fixture(scope="session")
def facts(model_path: Path) -> ModelFacts:
    return read_model_facts(model_path)


@pytest.fixture(scope="session")
def pool(facts: ModelFacts) -> Iterator[TokenizerPool]:
    opened = TokenizerPool(facts.tokenizer_file, 1, facts.chat_template)
    yield opened
    opened.close()


@dataclass
class RunningFleet:
    """A router and its workers, in one process."""

    store: Store
    shell: Shell
    address: str
    inference: inference_pb2_grpc.InferenceServiceAsyncStub
    operators: fleet_pb2_grpc.FleetServiceAsyncStub
    service: InferenceService
    handoffs: Handoffs = field(default_factory=Handoffs)
    workers: list[ScriptedWorker] = field(default_factory=list)

    async def add(self, role: str, worker_id: str, **settings: object) -> ScriptedWorker:
        """Start a worker and wait until the router is connected to it."""
        worker = ScriptedWorker(role, worker_id, self.handoffs)
        for name, value in settings.items():
            setattr(worker, name, value)
        await worker.start()
        await worker.announce(self.store)
        self.workers.append(worker)
        key = worker.record.key
        await until(lambda: key in self.shell.core.state.fleet.workers)
        return worker

    async def pair(self, **settings: object) -> tuple[ScriptedWorker, ScriptedWorker]:
        """One prefill and one decode worker."""
        return await self.add("prefill", "p0", **settings), await self.add("decode", "d0", **settings)

    async def nothing_is_held(self) -> bool:
        """No queue entry, credit or lease is left in the store."""
        for worker in self.workers:
            key = worker.record.key
            if await self.store.leases(key) or await self.store.credits(key):
                return False
        return (await self.store.queue_status()).waiting == 0


@pytest.fixture
async def fleet(store: Store, pool: TokenizerPool, facts: ModelFacts) -> AsyncIterator[RunningFleet]:
    """A router without workers; tests add those they need."""
    core = RouterCore(CoreConfig("router-a", queue_capacity=64))
    shell = Shell(core, store, RouterMetrics(), facts.name)
    server = grpc.aio.server(interceptors=(ErrorInterceptor(lambda error: None),))
    preprocessor = Preprocessor(shell, facts, pool)
    service = InferenceService(shell, preprocessor, facts)
    service.add_to(server)
    FleetService(shell, facts).add_to(server)
    ScalerService(shell).add_to(server)
    server.add_generic_rpc_handlers((UnknownMethods(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    running = asyncio.create_task(shell.run())
    address = f"127.0.0.1:{port}"
    async with grpc.aio.insecure_channel(address) as channel:
        inference = inference_pb2_grpc.InferenceServiceStub(channel)
        operators = fleet_pb2_grpc.FleetServiceStub(channel)
        started = RunningFleet(store, shell, address, inference, operators, service)
        yield started
        await server.stop(grace=None)
        preprocessor.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in started.workers))
        await shell.store_calls.settle()
