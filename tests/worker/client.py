"""A router's end of a Work stream: dispatches sequences and keeps what is reported of them."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import grpc

from baton.worker.v1 import worker_pb2 as pb
from baton.worker.v1 import worker_pb2_grpc as pb_grpc
from router.links.convert_worker import spec_to_pb
from scheduling.request import Fence, SamplingParams, SequenceSpec, StopRules
from tests.patience import PATIENCE_S


@dataclass
class Heard:
    """The reports about one handle."""

    token_ids: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By choice."""
    indexes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    logprobs: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    text: dict[int, bytes] = field(default_factory=lambda: defaultdict(bytes))
    finished: dict[int, int] = field(default_factory=dict)
    cached_tokens: int | None = None
    failure: pb.SequenceFailure | None = None


class WorkClient:
    """`async with WorkClient(address) as client:`; handles are drawn here."""

    def __init__(self, address: str, router_id: str = "router-test") -> None:
        self.heard: dict[int, Heard] = defaultdict(Heard)
        self.loads: list[pb.WorkerLoad] = []
        self.costs: list[pb.CostModel] = []
        self.num_heartbeats = 0
        self.released: list[int] = []
        """Handles that the worker holds no more."""
        self._router_id = router_id
        self._channel = grpc.aio.insecure_channel(address)
        self._changed = asyncio.Condition()
        self._handles = itertools.count(1)
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        stub: pb_grpc.WorkerServiceAsyncStub = pb_grpc.WorkerServiceStub(self._channel)
        self.call = stub.Work()
        await self.write(pb.WorkRequest(hello=pb.Hello(router_id=self._router_id)))
        first = await self.call.read()
        assert isinstance(first, pb.WorkResponse)
        self.welcome = first.welcome
        self.loads.append(first.welcome.load)
        self.costs.append(first.welcome.cost_model)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._channel.close()

    async def prefill(self, spec: SequenceSpec) -> int:
        return await self.send(spec, lambda message: pb.WorkRequest(prefill=pb.Prefill(sequence=message)))

    async def decode(self, spec: SequenceSpec) -> int:
        return await self.send(spec, lambda message: pb.WorkRequest(decode=pb.Decode(sequence=message)))

    async def receive(self, spec: SequenceSpec, source: str) -> int:
        def request(message: pb.SequenceSpec) -> pb.WorkRequest:
            return pb.WorkRequest(receive=pb.Receive(sequence=message, source_address=source))

        return await self.send(spec, request)

    async def send(self, spec: SequenceSpec, request: Callable[[pb.SequenceSpec], pb.WorkRequest]) -> int:
        message = spec_to_pb(spec)
        message.handle = next(self._handles)
        await self.write(request(message))
        return message.handle

    async def write(self, request: pb.WorkRequest) -> None:
        """The next command, numbered."""
        request.number = next(self._numbers)
        await self.call.write(request)

    async def cancel(self, *handles: int) -> None:
        await self.write(pb.WorkRequest(cancel=pb.Cancel(handles=handles)))

    async def until(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Waits until what has been heard makes `condition` true."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: self._reading.done() or condition())
        if self._reading.done():
            self._reading.result()
            assert condition(), "the worker ended the stream"

    async def until_finished(self, *handles: int, choices: int = 1) -> None:
        def ended(heard: Heard) -> bool:
            return len(heard.finished) == choices or heard.failure is not None

        await self.until(lambda: all(ended(self.heard[handle]) for handle in handles))

    async def until_all_free(self) -> None:
        """Every block is back: free, or free and cached."""
        await self.until(lambda: self.loads[-1].free_blocks == self.welcome.num_blocks)

    async def _read(self) -> None:
        try:
            while isinstance(message := await self.call.read(), pb.WorkResponse):
                async with self._changed:
                    self._take(message)
                    self._changed.notify_all()
        finally:
            async with self._changed:
                self._changed.notify_all()

    def _take(self, message: pb.WorkResponse) -> None:
        if message.HasField("heartbeat"):
            self.num_heartbeats += 1
            self.loads.append(message.heartbeat.load)
            return
        step = message.step
        self.loads.append(step.load)
        if step.HasField("cost_model"):
            self.costs.append(step.cost_model)
        self.released += step.released_handles
        for failure in step.failures:
            self.heard[failure.handle].failure = failure
        for handle, cached in zip(step.prefilled_handles, step.cached_tokens, strict=True):
            self.heard[handle].cached_tokens = cached
        self._take_tokens(step)

    def _take_tokens(self, step: pb.StepReport) -> None:
        tokens = step.tokens
        logprob_of = dict(zip(tokens.logprob_rows, tokens.logprobs, strict=True))
        lengths = tokens.text_lengths or [0] * len(tokens.handles)
        end = 0
        for row, handle in enumerate(tokens.handles):
            heard, choice = self.heard[handle], tokens.choices[row]
            heard.indexes[choice].append(tokens.indexes[row])
            heard.token_ids[choice].append(tokens.token_ids[row])
            if row in logprob_of:
                heard.logprobs[choice].append(logprob_of[row])
            end += lengths[row]
            heard.text[choice] += tokens.text_utf8[end - lengths[row] : end]
            if tokens.finish_reasons[row]:
                heard.finished[choice] = tokens.finish_reasons[row]


_request_ids = itertools.count()


def spec_of(
    prompt: Sequence[int],
    *,
    source: str = "",
    target: str = "",
    max_tokens: int = 8,
    request_id: str | None = None,
    session: int = 0,
    attempt: int = 0,
    choices: tuple[int, ...] = (0,),
    output: Sequence[int] = (),
    temperature: float = 0.0,
    seed: int = 1,
    stop_token_ids: tuple[int, ...] = (),
) -> SequenceSpec:
    """A sequence of a request of its own unless `request_id` says otherwise; the handle is the client's."""
    name = f"request-{next(_request_ids)}" if request_id is None else request_id
    return SequenceSpec(
        handle=0,
        fence=Fence("tenant", name, session, attempt, choices[0], source, target),
        prompt_token_ids=tuple(prompt),
        output_token_ids=tuple(output),
        choices=choices,
        sampling=SamplingParams(temperature=temperature, n=len(choices), logprobs=0, seed=seed),
        stop=StopRules(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=stop_token_ids),
    )
