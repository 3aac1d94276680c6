"""A fleet of slow steps, and one request at a time that is ended from outside in a chosen phase.

Steps are timed, and so long (40 ms, a chunk 66 ms) that messages take little in comparison. The decode worker
has one seat. The start of a measurement is taken at the client, before the call that ends the request, so a
result is rather too long than too short.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc.aio

from baton import AsyncClient
from baton.fleet import Fleet, FleetSpec
from baton.types import Sampling, Slo, Stop
from baton.v1 import inference_pb2, inference_pb2_grpc
from baton.wire.convert import request_to_pb
from benchmarks.failures.freeing import BlockCounts, Holdings
from benchmarks.failures.redis_watch import monitored, own_redis
from benchmarks.fleets.observe import snapshot
from scheduling.cost.cost_model import CostModel, StepShape
from scheduling.cost.profiles import dump
from services.profiles import load_profile

COST = CostModel((0.04, 0.0, 4e-4, 0.0, 0.0, 0.0), 0.0)
BUDGET = 64
"""Chunks become this small when a busy machine makes steps so late that costs are not trusted."""
STEP_S = COST.predict(StepShape.of(1, 0, ()))
CHUNK_S = COST.predict(StepShape.of(0, 0, [(0, BUDGET)]))
PROMPT_TOKENS = 8 * BUDGET
TOKENS = 400
BUSY_TEXT = "a tokenizer that has much to do. " * 30_000
"""About as long as a text may be."""
UNREAD_S = 0.6
"""Seconds for which a client has read nothing when its request is ended in the relay."""
ARRIVES_S = 0.1
"""Seconds for the text that keeps the tokenizer busy to arrive first: it is much longer than the request."""
UNREAD_BYTES = 1024
"""A connection window that a few tokens fill: the others wait in the router."""
VOCAB_SIZE = 2048


class Phase(enum.StrEnum):
    QUEUE = "queue"
    TOKENISING = "tokenising"
    PREFILL = "prefill"
    HANDOFF = "handoff"
    DECODE = "decode"
    RELAY = "relay"


class Way(enum.StrEnum):
    CANCEL = "cancel"
    DEADLINE = "deadline"
    DISCONNECT = "disconnect"


@contextlib.asynccontextmanager
async def started(model: Path, folder: Path) -> AsyncIterator[Scene]:
    """Run a fleet while the block lasts; `folder` is for its profile and logs."""
    slow = folder / "slow.json"
    profile = replace(load_profile("demo-cpu"), name="slow", cost=COST, weights_fingerprint="")
    slow.write_text(dump(profile), encoding="utf-8")
    with own_redis() as redis_url:
        async with _scene(model, folder, slow, redis_url) as scene:
            yield scene


@contextlib.asynccontextmanager
async def _scene(model: Path, folder: Path, slow: Path, redis_url: str) -> AsyncIterator[Scene]:
    spec = FleetSpec(
        model=model,
        redis_url=redis_url,
        timed=str(slow),
        placement="disaggregated",
        run_dir=folder / "run",
        extra_args={
            "prefill": ("--token-budget", str(BUDGET), "--max-num-seqs", "8"),
            "decode": ("--max-num-seqs", "1"),
            "router": ("--tokenizer-processes", "1"),
        },
    )
    holdings = Holdings()
    options = [("grpc.http2.lookahead_bytes", UNREAD_BYTES), ("grpc.http2.bdp_probe", 0)]
    async with (
        Fleet(spec) as fleet,
        monitored(redis_url, holdings.take),
        grpc.aio.insecure_channel(fleet.router_addresses[0]) as channel,
        grpc.aio.insecure_channel(fleet.router_addresses[0], options=options) as narrow,
    ):
        async with AsyncClient(fleet.router_addresses) as client:
            num_blocks = {worker.worker_id: worker.num_blocks for worker in (await snapshot(client)).workers}
        blocks = BlockCounts(
            {fleet.process(name).metrics_address: num_blocks[name] for name in fleet.spec.worker_names}
        )
        scene = Scene(channel, narrow, holdings, blocks)
        await scene.learn()
        yield scene


class Listener:
    """A call that is read up to a number of tokens, and further later."""

    def __init__(
        self, call: grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]
    ) -> None:
        self.call = call
        self.first_at = 0.0
        self.finished: inference_pb2.Finished | None = None
        self._num_tokens = 0

    async def read(self, num_tokens: int | None = None) -> float:
        """Read up to a number of tokens, or to the end, and return the time."""
        while num_tokens is None or self._num_tokens < num_tokens:
            message = await self.call.read()
            if not isinstance(message, inference_pb2.GenerateResponse):
                break
            event = message.event
            if event.HasField("tokens"):
                self.first_at = self.first_at or time.time()
                self._num_tokens += len(event.tokens.token_ids)
            elif event.HasField("finished"):
                self.finished = event.finished
        return time.time()


class Scene:
    """The fleet, which is idle between two trials."""

    def __init__(
        self, channel: grpc.aio.Channel, narrow: grpc.aio.Channel, holdings: Holdings, blocks: BlockCounts
    ) -> None:
        self._stub: inference_pb2_grpc.InferenceServiceAsyncStub
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._narrow: inference_pb2_grpc.InferenceServiceAsyncStub
        self._narrow = inference_pb2_grpc.InferenceServiceStub(narrow)
        self._holdings = holdings
        self._blocks = blocks
        self._count = 0
        self.ttft_s = 0.0
        """Seconds of an undisturbed request of `PROMPT_TOKENS`."""
        self.tokenising_s = 0.0
        """Seconds to tokenise `BUSY_TEXT`."""

    async def learn(self) -> None:
        """Measure undisturbed requests."""
        rng = random.Random(0)
        self.ttft_s = statistics.median([await self.ttft(rng, PROMPT_TOKENS) for _ in range(3)])
        began = time.time()
        await self._stub.CountTokens(inference_pb2.CountTokensRequest(text=BUSY_TEXT))
        self.tokenising_s = time.time() - began

    async def ttft(self, rng: random.Random, num_tokens: int) -> float:
        """Return the seconds until a client has the first token of a request."""
        began = time.time()
        listener = Listener(self._stub.Generate(self._request(rng, num_tokens, max_tokens=2)))
        await listener.read()
        await self._blocks.until_all_free()
        return listener.first_at - began

    async def ttft_behind(self, rng: random.Random, num_tokens: int, phase: Phase, way: Way) -> float:
        """Return the TTFT of a request sent at the moment another one is ended; the fleet has one seat."""
        doomed = self._request(rng, PROMPT_TOKENS)
        listener = Listener(self._stub.Generate(doomed))
        await self._reach(phase, doomed.request_id, listener, rng)
        await self._strike(way, doomed.request_id, listener)
        return await self.ttft(rng, num_tokens)

    async def trial(self, phase: Phase, way: Way, rng: random.Random) -> float | None:
        """Bring a request to a phase and end it there; return the seconds from then until it held nothing.

        Return None if it was ended in another phase, by the router's account. A client that has left receives
        none, and is believed.
        """
        async with self._company(phase, rng):
            due_ms = self._due_ms(phase, rng) if way is Way.DEADLINE else None
            request = self._request(rng, PROMPT_TOKENS, deadline_ms=due_ms)
            if phase is Phase.TOKENISING:
                request.text = "so far"
            stub = self._narrow if phase is Phase.RELAY else self._stub
            sent_at = time.time()
            listener = Listener(stub.Generate(request))
            if due_ms is None:
                await self._reach(phase, request.request_id, listener, rng)
                counts_at = time.time()
                await self._strike(way, request.request_id, listener)
            else:
                counts_at = sent_at + due_ms / 1000
                await asyncio.sleep(counts_at - time.time())
            freed_at = await self._freed(phase, way, request.request_id, listener)
        await self._blocks.until_all_free()
        return freed_at - counts_at if _told(phase, listener) in (phase, None) else None

    @contextlib.asynccontextmanager
    async def _company(self, phase: Phase, rng: random.Random) -> AsyncIterator[None]:
        """Keep a request waiting in the phase in which it is to be ended."""
        if phase is Phase.QUEUE:
            blocker = self._request(rng, BUDGET)
            listener = Listener(self._stub.Generate(blocker))
            await listener.read(1)
            yield
            listener.call.cancel()
            await self._holdings.until_nothing(blocker.request_id)
        elif phase is Phase.TOKENISING:
            busy = self._stub.CountTokens(inference_pb2.CountTokensRequest(text=BUSY_TEXT))
            await asyncio.sleep(ARRIVES_S)
            yield
            await busy
        else:
            yield

    def _due_ms(self, phase: Phase, rng: random.Random) -> int:
        """Return a deadline that passes in the phase."""
        first_s = self.ttft_s
        least_s, most_s = {
            Phase.QUEUE: (0.1, 0.1 + STEP_S),
            Phase.TOKENISING: (0.1 * self.tokenising_s, 0.5 * self.tokenising_s),
            Phase.PREFILL: (0.2 * first_s, 0.7 * first_s),
            Phase.HANDOFF: (first_s + 0.2 * STEP_S, first_s + 0.5 * STEP_S),
            Phase.DECODE: (first_s + 4.0 * STEP_S, first_s + 5.0 * STEP_S),
            Phase.RELAY: (first_s + UNREAD_S, first_s + UNREAD_S + STEP_S),
        }[phase]
        return round(1000 * rng.uniform(least_s, most_s))

    async def _reach(self, phase: Phase, request_id: str, listener: Listener, rng: random.Random) -> None:
        """Wait until the request is in the phase, and up to a step longer, but not beyond the phase."""
        least_s, most_s = 0.0, STEP_S
        match phase:
            case Phase.QUEUE:
                await self._holdings.until(request_id, lambda held: "queue" in held)
            case Phase.TOKENISING:
                least_s, most_s = 0.1 * self.tokenising_s, 0.5 * self.tokenising_s
            case Phase.PREFILL:
                await self._blocks.until(lambda free: free[0] < self._blocks.all[0])
                most_s = 4.0 * CHUNK_S
            case Phase.HANDOFF:
                await listener.read(1)
                return
            case Phase.DECODE:
                await listener.read(4)
            case Phase.RELAY:
                await listener.read(1)
                least_s, most_s = UNREAD_S, UNREAD_S + STEP_S
        await asyncio.sleep(rng.uniform(least_s, most_s))

    async def _strike(self, way: Way, request_id: str, listener: Listener) -> None:
        if way is Way.DISCONNECT:
            listener.call.cancel()
        else:
            answer = await self._stub.Cancel(inference_pb2.CancelRequest(request_id=request_id))
            assert answer.cancelled, f"{request_id} ended before it was cancelled"

    async def _freed(self, phase: Phase, way: Way, request_id: str, listener: Listener) -> float:
        """Return when the request held nothing any more; while it is tokenised it holds only its call."""
        ended_at = 0.0
        if phase is Phase.TOKENISING:
            ended_at = await _end_of(listener)
        elif phase is not Phase.QUEUE:
            ended_at = await self._blocks.until_all_free()
        emptied_at = await self._holdings.until_nothing(request_id)
        if way is not Way.DISCONNECT:
            await _end_of(listener)
        return max(ended_at, emptied_at)

    def _request(
        self, rng: random.Random, num_tokens: int, max_tokens: int = TOKENS, deadline_ms: int | None = None
    ) -> inference_pb2.GenerateRequest:
        self._count += 1
        return request_to_pb(
            [rng.randrange(3, VOCAB_SIZE) for _ in range(num_tokens)],
            Sampling(seed=1, logprobs=20),
            Stop(max_tokens=max_tokens, ignore_eos=True),
            Slo(deadline_ms=deadline_ms),
            request_id=f"r{self._count}",
        )


async def _end_of(listener: Listener) -> float:
    try:
        return await listener.read()
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        return time.time()


def _told(phase: Phase, listener: Listener) -> Phase | None:
    """Return the phase by the time split: while tokenising it has not been admitted; while relayed it
    decodes.
    """
    if listener.finished is None:
        return None
    split = listener.finished.split
    if split.decode_ms > 0:
        return Phase.RELAY if phase is Phase.RELAY else Phase.DECODE
    if split.handoff_ms > 0:
        return Phase.HANDOFF
    if split.prefill_ms > 0:
        return Phase.PREFILL
    return Phase.TOKENISING if phase is Phase.TOKENISING else Phase.QUEUE
