"""The asyncio client of a fleet."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Self

from baton.errors import BatonError, NotFound, Unavailable
from baton.errors.reachability import explained
from baton.operators.v1 import fleet_pb2
from baton.routers import Backoff, Routers, resolved
from baton.security.credentials import UNENCRYPTED, Credentials
from baton.stream import GenerationStream
from baton.types import Completion, Model, OutputFormat, Program, Quote, Sampling, Slo, Stop, Timeout
from baton.types.chat import Prompt
from baton.types.snapshots import FleetFacts, FleetSnapshot
from baton.v1 import inference_pb2
from baton.wire.convert import (
    detokenize_to_pb,
    from_pb,
    model_from_pb,
    put_prompt,
    quote_from_pb,
    request_to_pb,
    snapshot_from_pb,
)
from baton.wire.many import ALWAYS, BEYOND_FEW, MultiplexedTransport
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

    A name of several addresses, such as that of a headless Kubernetes service, stands for several routers,
    which are looked up again as they come and go.
    For `resume_grace_s` the fleet keeps working after a connection breaks. `credentials` are for a secured
    fleet. Beyond eight at once at an address, generations share calls, which costs less; a proxy that spreads
    calls over routers sends those on one call to the same router. With `multiplex`, all of them share calls,
    and none does if it is false. `connect` creates the `Transport` for an address. A client belongs to one
    event loop.
    """

    def __init__(
        self,
        addresses: str | Sequence[str] = DEFAULT_ADDRESS,
        *,
        tenant: str = "",
        model: str = "",
        timeout: Timeout | None = None,
        resume_grace_s: float = 10.0,
        credentials: Credentials = UNENCRYPTED,
        multiplex: bool | None = None,
        connect: Connect | None = None,
    ) -> None:
        addresses = [addresses] if isinstance(addresses, str) else addresses
        if connect is None:
            shared = partial(MultiplexedTransport, sharing=ALWAYS if multiplex else BEYOND_FEW)
            transport: Callable[..., Transport] = GrpcTransport if multiplex is False else shared
            self._routers = Routers(
                addresses,
                lambda address, name: transport(address, credentials, server_name=name),
                partial(explained, credentials=credentials),
                resolved,
            )
        else:
            self._routers = Routers(addresses, lambda address, _: connect(address))
        self._tenant = tenant
        self._model = model
        self._timeout = timeout or Timeout()
        self._resume_grace_ms = round(resume_grace_s * 1000)
        self._cancels: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait until pending cancellations reach the fleet, then close the connections."""
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
        output_format: OutputFormat | None = None,
        user: str = "",
        adapter: str = "",
        program: Program | None = None,
        cancel_when_closed: bool = True,
        timeout: Timeout | None = None,
    ) -> GenerationStream:
        """Return the events of one generation. The request is sent when the first event is awaited.

        Two calls with the same `request_id` are one generation, of which both receive all events.
        `truncate_prompt_tokens` keeps only the last tokens of the prompt. `user` names the caller's own user,
        for the fleet's logs. `adapter` names one of the fleet's LoRA adapters (`Model.adapters`). `program`
        is the program that this is a call of, with the time that is left for all of it. A caller who closes
        the stream early cancels the generation. If `cancel_when_closed` is false, the fleet goes on for
        `resume_grace_s`, and a call with the same `request_id` receives all events.
        """
        # A seed drawn here stays the same on every router that resumes the generation.
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
            output_format=output_format,
            user=user,
            adapter=adapter,
            program=program,
        )
        abandon = self._abandon if cancel_when_closed else None
        return GenerationStream(request, self._routers, timeout or self._timeout, abandon)

    async def complete(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        stop: Stop | None = None,
        slo: Slo | None = None,
        request_id: str = "",
        truncate_prompt_tokens: int | None = None,
        output_format: OutputFormat | None = None,
        user: str = "",
        adapter: str = "",
        program: Program | None = None,
        timeout: Timeout | None = None,
    ) -> Completion:
        """Return a whole generation. Raises `GenerationFailed` if the fleet could not complete it."""
        stream = self.generate(
            prompt,
            sampling=sampling,
            stop=stop,
            slo=slo,
            request_id=request_id,
            truncate_prompt_tokens=truncate_prompt_tokens,
            output_format=output_format,
            user=user,
            adapter=adapter,
            program=program,
            timeout=timeout,
        )
        return await stream.collect()

    async def cancel(self, request_id: str) -> bool:
        """End a generation wherever it runs. Return False if no router that was called ran it.

        All addresses are called, but behind an address of several routers only one of these.
        """
        request = inference_pb2.CancelRequest(tenant=self._tenant, request_id=request_id)
        responses = await self._call_all(CANCEL, request)
        return any(response.cancelled for response in responses)

    async def quote(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        stop: Stop | None = None,
        slo: Slo | None = None,
        truncate_prompt_tokens: int | None = None,
        output_format: OutputFormat | None = None,
        adapter: str = "",
    ) -> Quote:
        """Return the promise that this request would get now."""
        request = request_to_pb(
            prompt,
            sampling or Sampling(),
            stop or Stop(),
            slo or Slo(),
            tenant=self._tenant,
            model=self._model,
            truncate_prompt_tokens=truncate_prompt_tokens,
            output_format=output_format,
            adapter=adapter,
        )
        return quote_from_pb(await self._call_any(QUOTE, inference_pb2.QuoteRequest(request=request)))

    async def count_tokens(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the token ids of a text or a chat; their number is `len`."""
        request = inference_pb2.CountTokensRequest(model=self._model)
        put_prompt(request, prompt)
        return tuple((await self._call_any(COUNT_TOKENS, request)).token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids, as the model's tokenizer decodes them."""
        request = detokenize_to_pb(token_ids, model=self._model, skip_special_tokens=skip_special_tokens)
        return (await self._call_any(DETOKENIZE, request)).text

    async def token_bytes(self, token_ids: Sequence[int]) -> tuple[bytes, ...]:
        """Return the bytes of each token by itself; a token may begin or end inside a character."""
        request = detokenize_to_pb(
            token_ids, model=self._model, skip_special_tokens=False, include_token_bytes=True
        )
        return tuple((await self._call_any(DETOKENIZE, request)).token_bytes)

    async def models(self, *, connect_s: float | None = None) -> tuple[Model, ...]:
        """Return the fleet's models. `connect_s` is used in place of `Timeout.connect_s`."""
        response = await self._call_any(LIST_MODELS, inference_pb2.ListModelsRequest(), connect_s)
        return tuple(map(model_from_pb, response.models))

    async def proven_tenant(self) -> str:
        """Return the tenant that the credential proves; empty if the fleet requires no credentials."""
        request = inference_pb2.ListModelsRequest(tenant_only=True)
        return (await self._call_any(LIST_MODELS, request)).tenant

    async def describe(self) -> FleetFacts:
        response = await self._call_any(DESCRIBE, fleet_pb2.DescribeRequest())
        return from_pb(FleetFacts, response)

    async def drain(self, worker_id: str) -> None:
        """Let a worker finish its work and take nothing new. Raises `NotFound` for an unknown worker."""
        responses = await self._call_all(DRAIN, fleet_pb2.DrainRequest(worker_id=worker_id))
        if not any(response.draining for response in responses):
            raise NotFound(f"worker {worker_id!r} is not connected to any reachable router")

    async def watch(
        self, interval_s: float = 0.5, *, include_steps: bool = False
    ) -> AsyncGenerator[FleetSnapshot, None]:
        """Yield a snapshot at once and then one per interval, forever, from any router that serves.

        With `include_steps` each has the steps that were reported to this router since the last one.
        """
        request = fleet_pb2.WatchRequest(interval_ms=round(interval_s * 1000), include_steps=include_steps)
        backoff = Backoff(self._timeout.connect_s, self._routers)
        while True:
            router = await self._routers.next()
            try:
                async with aclosing(router.stream(WATCH, request)) as snapshots:
                    async for snapshot in snapshots:
                        backoff.reset()
                        yield snapshot_from_pb(snapshot)
                raise Unavailable("the router ended the watch", router.address)
            except Unavailable as error:
                self._routers.failed(router)
                await backoff.wait_after(error)

    async def _call_any(
        self, method: Method[Request, Response], request: Request, connect_s: float | None = None
    ) -> Response:
        def call(router: Transport) -> Awaitable[Response]:
            return router.unary(method, request, self._unary_timeout_s)

        limit_s = self._timeout.connect_s if connect_s is None else connect_s
        return await self._routers.call_any(call, limit_s)

    async def _call_all(self, method: Method[Request, Response], request: Request) -> list[Response]:
        """Return the responses of all reachable routers. Raises `Unavailable` if there are none."""
        await self._routers.look()
        calls = (router.unary(method, request, self._unary_timeout_s) for router in self._routers.transports)
        results = await asyncio.gather(*calls, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        for failure in failures:
            if not isinstance(failure, Unavailable):
                raise failure
            if len(failures) == len(results):
                raise await self._routers.explained(failure)
        return [result for result in results if not isinstance(result, BaseException)]

    @property
    def _unary_timeout_s(self) -> float:
        return self._timeout.total_s or _LONGEST_UNARY_S

    def _abandon(self, request_id: str) -> None:
        """Cancel an abandoned generation in the background."""
        if self._closed:  # the fleet notices the closed connection
            return
        task = asyncio.get_running_loop().create_task(self._cancel_quietly(request_id))
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)

    async def _cancel_quietly(self, request_id: str) -> None:
        # An unreachable fleet ends the generation by itself after the resume grace.
        with contextlib.suppress(BatonError):
            await self.cancel(request_id)
