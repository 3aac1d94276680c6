"""The asyncio client of a fleet."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import uuid
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Self

from baton.errors import BatonError, NotFound, Unavailable
from baton.operators.v1 import fleet_pb2
from baton.routers import Routers
from baton.security.credentials import IN_THE_CLEAR, Credentials
from baton.security.reachability import explained
from baton.snapshots import FleetFacts, FleetSnapshot
from baton.stream import GenerationStream
from baton.types import Completion, Model, Prompt, Quote, Sampling, Slo, Stop, Timeout
from baton.v1 import inference_pb2
from baton.wire.convert import detokenize_to_pb, model_from_pb, put_prompt, quote_from_pb, request_to_pb
from baton.wire.convert_fleet import facts_from_pb, snapshot_from_pb
from baton.wire.transport import (
    CANCEL,
    COUNT_TOKENS,
    DESCRIBE,
    DETOKENIZE,
    DRAIN,
    LIST_MODELS,
    QUOTE,
    WATCH,
    Connect,
    GrpcTransport,
    Method,
    Request,
    Response,
    Transport,
)

DEFAULT_ADDRESS = "127.0.0.1:50051"
_LONGEST_UNARY_S = 30.0
_LAST_CANCELS_S = 2.0


class AsyncClient:
    r"""Calls a fleet through any of its routers.

        async with AsyncClient("127.0.0.1:50051") as client:
            async for event in client.generate("import asyncio\n"):
                ...

    `resume_grace_s` is how long the fleet keeps working when the connection breaks; `credentials` are for a
    secured fleet; `connect` makes the `Transport` for an address. One client belongs to one event loop.
    """

    def __init__(
        self,
        addresses: str | Sequence[str] = DEFAULT_ADDRESS,
        *,
        tenant: str = "",
        model: str = "",
        timeout: Timeout | None = None,
        resume_grace_s: float = 10.0,
        credentials: Credentials = IN_THE_CLEAR,
        connect: Connect | None = None,
    ) -> None:
        self._routers = Routers(
            [addresses] if isinstance(addresses, str) else addresses,
            connect or partial(GrpcTransport, credentials=credentials),
            partial(explained, credentials=credentials) if connect is None else None,
        )
        self._tenant = tenant
        self._model = model
        self._timeout = timeout or Timeout()
        self._resume_grace_ms = round(resume_grace_s * 1000)
        self._cancels: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Lets cancellations under way reach the fleet, then closes the connections."""
        self._closed = True
        if self._cancels:
            await asyncio.wait(self._cancels, timeout=_LAST_CANCELS_S)
        await self._routers.close()

    def generate(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        stop: Stop | None = None,
        slo: Slo | None = None,
        request_id: str = "",
        truncate_prompt_tokens: int | None = None,
        timeout: Timeout | None = None,
    ) -> GenerationStream:
        """The events of one generation; nothing is sent before the first is awaited.

        A `request_id` of your own makes a generation sent twice the same generation: both calls
        hear all of it. With `truncate_prompt_tokens` only the last so many tokens of the prompt are used.
        """
        # A seed drawn here stays the same on whatever router the generation is resumed.
        sampling = sampling or Sampling()
        if sampling.seed is None:
            sampling = dataclasses.replace(sampling, seed=secrets.randbits(63))
        request = request_to_pb(
            prompt,
            sampling,
            stop or Stop(),
            slo or Slo(),
            request_id=request_id or uuid.uuid4().hex,
            tenant=self._tenant,
            model=self._model,
            resume_grace_ms=self._resume_grace_ms,
            truncate_prompt_tokens=truncate_prompt_tokens,
        )
        return GenerationStream(request, self._routers, timeout or self._timeout, self._abandon)

    async def complete(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        stop: Stop | None = None,
        slo: Slo | None = None,
        request_id: str = "",
        truncate_prompt_tokens: int | None = None,
        timeout: Timeout | None = None,
    ) -> Completion:
        """The same, collected. Raises `GenerationFailed` when the fleet could not bring it to its end."""
        stream = self.generate(
            prompt,
            sampling=sampling,
            stop=stop,
            slo=slo,
            request_id=request_id,
            truncate_prompt_tokens=truncate_prompt_tokens,
            timeout=timeout,
        )
        return await stream.collect()

    async def cancel(self, request_id: str) -> bool:
        """Ends a generation wherever it runs; False when no router in reach runs it."""
        request = inference_pb2.CancelRequest(tenant=self._tenant, request_id=request_id)
        answers = await self._ask_all(CANCEL, request)
        return any(answer.cancelled for answer in answers)

    async def quote(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        stop: Stop | None = None,
        slo: Slo | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> Quote:
        """The promise this request would get now."""
        request = request_to_pb(
            prompt,
            sampling or Sampling(),
            stop or Stop(),
            slo or Slo(),
            tenant=self._tenant,
            model=self._model,
            truncate_prompt_tokens=truncate_prompt_tokens,
        )
        return quote_from_pb(await self._ask(QUOTE, inference_pb2.QuoteRequest(request=request)))

    async def count_tokens(self, prompt: Prompt) -> tuple[int, ...]:
        """The token ids a text or a chat becomes; their number is `len`."""
        request = inference_pb2.CountTokensRequest(model=self._model)
        put_prompt(request, prompt)
        return tuple((await self._ask(COUNT_TOKENS, request)).token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids, as the model's tokenizer decodes them."""
        request = detokenize_to_pb(token_ids, model=self._model, skip_special_tokens=skip_special_tokens)
        return (await self._ask(DETOKENIZE, request)).text

    async def models(self) -> tuple[Model, ...]:
        answer = await self._ask(LIST_MODELS, inference_pb2.ListModelsRequest())
        return tuple(model_from_pb(model) for model in answer.models)

    async def describe(self) -> FleetFacts:
        return facts_from_pb(await self._ask(DESCRIBE, fleet_pb2.DescribeRequest()))

    async def drain(self, worker_id: str) -> None:
        """The worker takes nothing new and finishes what it has. Raises `NotFound` for an unknown one."""
        answers = await self._ask_all(DRAIN, fleet_pb2.DrainRequest(worker_id=worker_id))
        if not any(answer.draining for answer in answers):
            raise NotFound(f"worker {worker_id!r} is not connected to any router in reach")

    async def watch(self, interval_s: float = 0.5) -> AsyncGenerator[FleetSnapshot, None]:
        """A snapshot at once, then one every interval, for ever; from another router when one breaks off."""
        request = fleet_pb2.WatchRequest(interval_ms=round(interval_s * 1000))
        patience = self._routers.patience(self._timeout.connect_s)
        while True:
            router = self._routers.next()
            try:
                async with aclosing(router.stream(WATCH, request)) as snapshots:
                    async for snapshot in snapshots:
                        patience.renew()
                        yield snapshot_from_pb(snapshot)
                raise Unavailable("the router stopped telling", router.address)
            except Unavailable as error:
                self._routers.failed(router)
                await patience.wait_after(error)

    async def _ask(self, method: Method[Request, Response], request: Request) -> Response:
        def call(router: Transport) -> Awaitable[Response]:
            return router.unary(method, request, self._unary_timeout_s)

        return await self._routers.ask(call, self._timeout.connect_s)

    async def _ask_all(self, method: Method[Request, Response], request: Request) -> list[Response]:
        """Every router's answer, of those in reach. Raises `Unavailable` when none is."""
        asked = (router.unary(method, request, self._unary_timeout_s) for router in self._routers.transports)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        for failure in failures:
            if not isinstance(failure, Unavailable):
                raise failure
            if len(failures) == len(answers):
                raise await self._routers.explained(failure)
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    @property
    def _unary_timeout_s(self) -> float:
        return self._timeout.total_s or _LONGEST_UNARY_S

    def _abandon(self, request_id: str) -> None:
        """Tells the fleet that nobody listens any more; the caller does not wait for it."""
        if self._closed:  # the broken connection says it
            return
        task = asyncio.get_running_loop().create_task(self._cancel_quietly(request_id))
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)

    async def _cancel_quietly(self, request_id: str) -> None:
        # Out of reach, the fleet ends it by itself when the resume grace is over.
        with contextlib.suppress(BatonError):
            await self.cancel(request_id)
