"""InferenceService: translates calls to the core's events, and its actions to responses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import grpc.aio
import structlog

from baton.v1 import generation_pb2, inference_pb2, inference_pb2_grpc
from model_output.formats import Message
from router.api.convert import (
    check_end,
    content_digest,
    finished_to_pb,
    formats_to_pb,
    logprobs_to_pb,
    matched_to_pb,
    message_to_pb,
    prompt_from_pb,
    prompt_logprobs_to_pb,
    put_event,
    quote_to_pb,
    reason_to_pb,
    request_from_pb,
)
from router.api.many_call import ManyCall
from router.auth.auth import RESUME_WAIT_S, Auth, Bill, BudgetWait
from router.auth.principal import as_caller, tenant_of_call
from router.core.model.actions import TellAccepted, TellChoiceFinished, TellFinished, TellPromptLogprobs
from router.core.model.events import CancelAsked
from router.errors import DeadlineExpired, RouterError, ValidationError
from router.intake.helpers.tokenizer_pool import BYTES_PER_TOKEN
from router.intake.model_facts import ModelFacts
from router.intake.preprocessor import Preprocessor
from router.intake.sizes import check_chat_size, check_sizes
from router.intake.validation import (
    check_before_tokenising,
    check_model,
    check_name,
    check_resumption,
)
from router.limits import Limits
from router.links.client_stream import ClientStream, Outbox, StreamItem, TokenBatch
from router.links.shell import Shell
from router.outputs import OutputReader
from router.request import RawRequest, prompt_bytes
from runtime.rpc.convert import to_pb
from runtime.rpc.handlers import Context
from runtime.state.errors import StoreUnavailable
from runtime.tracing.context import traceparent_in

log = structlog.get_logger()

ResponseKind = type[inference_pb2.GenerateResponse] | type[inference_pb2.ResumeResponse]


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """See `inference.proto`."""

    def __init__(
        self,
        shell: Shell,
        preprocessor: Preprocessor,
        facts: ModelFacts,
        auth: Auth | None = None,
        max_generations: int = Limits().max_streams,
        *,
        shares_port: bool = False,
    ) -> None:
        self._shell = shell
        self._auth = auth
        self._preprocessor = preprocessor
        self._facts = facts
        self._max_generations = max_generations
        """How many one GenerateMany carries at once."""
        self._shares_port = shares_port
        """True if a call may reach another process of this router than the one that it is about."""
        self._pending = PendingCalls()
        self._many: set[ManyCall] = set()
        self._leaves = False

    def add_to(self, server: grpc.aio.Server) -> str:
        """Serve on `server`; returns the service's full name, for reflection."""
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, server)
        return inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name

    def leave(self) -> None:
        """End calls that clients keep open for later generations, as soon as they carry none."""
        self._leaves = True
        for many in self._many:
            many.leave()

    async def Generate(  # type: ignore[override]  # grpc.aio also takes a coroutine that writes
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> None:
        async with self._open_stream(request, context) as (stream, reader):
            await self._write(stream, reader, inference_pb2.GenerateResponse, context)

    async def Resume(  # type: ignore[override]  # as Generate
        self, request: inference_pb2.ResumeRequest, context: Context
    ) -> None:
        async with self._open_stream(request.request, context, request) as (stream, reader):
            await self._write(stream, reader, inference_pb2.ResumeResponse, context)

    async def GenerateOnce(
        self, request: inference_pb2.GenerateOnceRequest, context: Context
    ) -> inference_pb2.GenerateOnceResponse:
        collected = _Collected()
        async with self._open_stream(request.request, context) as (stream, reader):
            while not collected.is_finished:
                for item in await stream.take():
                    collected.add(item)
        return collected.message(reader, self._shell.now())

    async def GenerateMany(  # type: ignore[override]  # as Generate
        self, request_iterator: AsyncIterator[inference_pb2.GenerateManyRequest], context: Context
    ) -> None:
        shell = self._shell
        many = ManyCall(self._open_stream, self._auth, self._max_generations, shell.now, self._count)
        self._many.add(many)
        if self._leaves:
            many.leave()
        try:
            await many.serve(request_iterator, context)
        finally:
            self._many.discard(many)

    async def Cancel(
        self, request: inference_pb2.CancelRequest, context: Context
    ) -> inference_pb2.CancelResponse:
        if not request.request_id:
            raise ValidationError("request_id", "", "the id of the request to cancel")
        check_name("request_id", request.request_id)
        check_name("tenant", request.tenant)
        tenant = tenant_of_call(request.tenant)
        is_pending = self._pending.cancel((tenant, request.request_id))
        running = is_pending or self._shell.core.is_running(tenant, request.request_id)
        self._shell.submit(CancelAsked(tenant, request.request_id))
        # Only where a client cannot call the others itself: a notice may be faster than such a call, which
        # would then respond that the request was not running.
        if self._shares_port:
            with contextlib.suppress(StoreUnavailable):  # what runs here has been ended
                await self._shell.store.publish_cancel(self._shell.caller, tenant, request.request_id)
        return inference_pb2.CancelResponse(cancelled=running)

    async def Quote(
        self, request: inference_pb2.QuoteRequest, context: Context
    ) -> inference_pb2.QuoteResponse:
        check_sizes(request.request, self._facts)
        raw = as_caller(request_from_pb(request.request))
        await self._admit(BudgetWait(), prompt_bytes(raw))
        event = (await self._preprocessor.arrival(raw)).event
        checked = event.request
        quoted = await self._shell.quote(
            prompt_tokens=len(checked.prompt_token_ids),
            num_choices=checked.sampling.n,
            max_tokens=checked.stop.max_tokens,
            slo=checked.slo,
            waited_s=self._preprocessor.tokenised_s(raw),
            hits=event.hits,
            adapter=checked.adapter,
        )
        return quote_to_pb(quoted)

    async def CountTokens(
        self, request: inference_pb2.CountTokensRequest, context: Context
    ) -> inference_pb2.CountTokensResponse:
        check_chat_size(request.chat)
        raw = RawRequest(model=request.model, tenant=tenant_of_call(""), **prompt_from_pb(request))
        await self._admit(BudgetWait(), prompt_bytes(raw))
        check_before_tokenising(raw, self._facts, inputs=("text", "chat"))
        token_ids = await self._preprocessor.tokenise(raw)
        return inference_pb2.CountTokensResponse(count=len(token_ids), token_ids=token_ids)

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: Context
    ) -> inference_pb2.DetokenizeResponse:
        skips = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        ids, tenant = request.token_ids, tenant_of_call("")
        await self._admit(BudgetWait(), BYTES_PER_TOKEN * len(ids))
        check_model(request.model, self._facts)
        text = await self._preprocessor.detokenise(ids, skip_special_tokens=skips, tenant=tenant)
        token_bytes = (
            await self._preprocessor.token_bytes(ids, tenant=tenant) if request.include_token_bytes else []
        )
        return inference_pb2.DetokenizeResponse(text=text, token_bytes=token_bytes)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        tenant = tenant_of_call("")
        if request.tenant_only:
            return inference_pb2.ListModelsResponse(tenant=tenant)
        await self._admit(BudgetWait())
        fleet = self._shell.discovery.fleet
        model = to_pb(
            inference_pb2.Model,
            self._facts,
            has_chat_template=self._facts.chat_template is not None,
            tool_format=self._facts.formats.tools,
            reasoning_format=self._facts.formats.reasoning,
            fingerprint="" if fleet is None else fleet.fingerprint,
            adapters=sorted(self._shell.discovery.adapters),
            default_sampling=generation_pb2.SamplingParams(**self._facts.sampling_defaults),
        )
        return inference_pb2.ListModelsResponse(models=[model], tenant=tenant)

    @contextlib.asynccontextmanager
    async def _open_stream(
        self,
        message: inference_pb2.GenerateRequest,
        context: Context,
        resume: inference_pb2.ResumeRequest | None = None,
        outbox: Outbox | None = None,
        traceparent: str = "",
    ) -> AsyncIterator[tuple[ClientStream, OutputReader]]:
        """Submit a call to the core; yield its stream, and the reader of its texts.

        The core learns of the call's end in any case. `traceparent` is the caller's span, if the call's
        metadata is not to say that.
        """
        shell = self._shell
        received_at = shell.now()
        listener, stream = shell.open_stream(outbox)
        self._begin_span(listener, message, traceparent, context)
        bill: Bill | None = None
        refusal: RouterError | None = None
        wait = BudgetWait(0.0 if resume is None else RESUME_WAIT_S)
        try:
            try:
                check_sizes(message, self._facts, () if resume is None else resume.received)
                raw = request_from_pb(message, resume)
                digest = content_digest(message)
                caller = as_caller(raw)
                name = caller.tenant, caller.request_id
                with self._pending.track(name) as cancelled:
                    # Without an id it cannot be sent again as the same request.
                    request = f"{digest.hex()}:{caller.request_id}" if caller.request_id else ""
                    paid = await self._admit(wait, prompt_bytes(caller), request)
                    async with self._until_deadline(raw.deadline_ms, received_at):
                        if resume is not None:
                            check_resumption(caller)
                        prepared = await self._preprocessor.arrival(
                            caller,
                            listener=listener,
                            digest=digest,
                            received_at=received_at,
                            can_refuse=resume is None,
                        )
                    event = prepared.event
                    if self._auth is not None:
                        made = event.request
                        output = made.stop.max_tokens * made.sampling.n
                        received = sum(len(choice.token_ids) for choice in made.received)
                        num_prompt = len(made.prompt_token_ids)
                        bill = await self._auth.charge(
                            num_prompt, output, received, wait, paid=paid, request=request
                        )
            except RouterError as error:
                self._count(error)
                raise
            shell.submit(event)
            if cancelled.is_set():
                shell.submit(CancelAsked(*name))
            try:
                yield stream, prepared.reader
            except RouterError as error:
                _log_end(stream, name, event.request.session, error)
                raise
        except RouterError as error:
            refusal = error
            raise
        finally:
            shell.close_stream(listener, refusal)
            if bill is not None:
                self._refund(bill, stream, refusal)

    def _begin_span(
        self, listener: int, message: inference_pb2.GenerateRequest, traceparent: str, context: Context
    ) -> None:
        """Trace a call, if this router traces; the shell ends the span when it closes the call's stream."""
        spans = self._shell.spans
        if spans is not None:
            caller = traceparent or traceparent_in(context.invocation_metadata() or ())
            operation = "chat" if message.HasField("chat") else "text_completion"
            spans.begin(listener, caller, operation, self._shell.now())

    def _count(self, error: RouterError) -> None:
        self._shell.metrics.requests.labels(type(error).__name__).inc()

    async def _admit(self, wait: BudgetWait, num_bytes: int = 0, request: str = "") -> int:
        """Charge a call, and the tokenising of its text, to its budget; return the tokens charged.

        Refuse a new call, which cannot wait, while this router lags.
        """
        if not wait.left_s:
            self._shell.ticker.refuse_if_busy()
        return 0 if self._auth is None else await self._auth.admit(wait, num_bytes, request)

    @contextlib.asynccontextmanager
    async def _until_deadline(self, deadline_ms: int | None, received_at: float) -> AsyncIterator[None]:
        """End checking and tokenising at the deadline. Afterwards the core enforces it."""
        if deadline_ms is None:
            yield
            return
        left_s = received_at + deadline_ms / 1000 - self._shell.now()
        try:
            async with asyncio.timeout(left_s) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DeadlineExpired(deadline_ms) from error

    def _refund(self, bill: Bill, stream: ClientStream, refusal: RouterError | None) -> None:
        """Refund what a finished or refused call did not use.

        A broken call is not refunded: its request may go on, and how much it uses is not known here. What it
        has paid counts for the call that takes the request over.
        """
        assert self._auth is not None, "only auth makes bills"
        if stream.finished is not None:
            self._auth.refund(bill, bill.max_output_tokens - stream.finished.outcome.output_tokens)
        elif refusal is not None and not stream.accepted:
            self._auth.cancel(bill)

    async def _write(
        self, stream: ClientStream, reader: OutputReader, response: ResponseKind, context: Context
    ) -> None:
        """Write a stream to its end. This is the token path: no generator between buffer and connection."""
        first_written_at: float | None = None
        while True:
            for item in await stream.take():
                if isinstance(item, TellFinished):
                    check_end(item)
                now = self._shell.now()
                if first_written_at is None and isinstance(item, TokenBatch):
                    first_written_at = now
                message = response()
                put_event(message.event, item, reader, first_written_at, now)
                await context.write(message)
                if isinstance(item, TellFinished):
                    return


def _log_end(stream: ClientStream, name: tuple[str, str], session: int, error: RouterError) -> None:
    """Log that a call was refused, or that its stream was broken off, with the name of its request."""
    log.info(
        "broken_off" if stream.accepted else "refused",
        request="/".join((*name, str(session))),
        error=type(error).__name__,
        reason=str(error),
    )


class _Collected:
    """A stream collected into one message."""

    def __init__(self) -> None:
        self._accepted: TellAccepted | None = None
        self._finished: TellFinished | None = None
        self._choices: dict[int, inference_pb2.Choice] = {}
        self._ends: dict[int, TellChoiceFinished] = {}
        self._prompt_logprobs: list[inference_pb2.TokenLogprobs] = []

    def add(self, item: StreamItem) -> None:
        match item:
            case TellAccepted():
                self._accepted = item
            case TokenBatch():
                choice = self._choice(item.choice)
                choice.token_ids.extend(item.token_ids)
                choice.text += "".join(item.texts)
                choice.logprobs.extend(map(logprobs_to_pb, item.logprobs))
            case TellPromptLogprobs():
                self._prompt_logprobs.extend(prompt_logprobs_to_pb(item.told))
            case TellChoiceFinished():
                end = inference_pb2.Choice(
                    finish_reason=reason_to_pb(item.reason), **matched_to_pb(item.matched)
                )
                self._choice(item.choice).MergeFrom(end)
                self._ends[item.choice] = item
            case TellFinished():
                check_end(item)
                self._finished = item

    @property
    def is_finished(self) -> bool:
        return self._finished is not None

    def _choice(self, index: int) -> inference_pb2.Choice:
        return self._choices.setdefault(index, inference_pb2.Choice(index=index))

    def _read(self, reader: OutputReader) -> None:
        """Set what each choice says."""
        for index, end in self._ends.items():
            choice = self._choices[index]
            deltas = [*reader.read(index, choice.text), *reader.end(index, end.reason, end.matched)]
            choice.message.CopyFrom(message_to_pb(Message.of(deltas)))
            choice.has_cut_call = reader.has_cut_call(index)

    def message(self, reader: OutputReader, now: float) -> inference_pb2.GenerateOnceResponse:
        assert self._accepted is not None, "a stream begins with Accepted"
        assert self._finished is not None, "a stream ends with Finished"
        if reader.has_deltas:
            self._read(reader)
        return inference_pb2.GenerateOnceResponse(
            request_id=self._accepted.request_id,
            choices=[self._choices[index] for index in sorted(self._choices)],
            finished=finished_to_pb(self._finished.outcome, None, now),
            seed=self._accepted.seed,
            prompt_logprobs=self._prompt_logprobs,
            **formats_to_pb(reader.reading),
        )


# Calls that the core does not know yet

Name = tuple[str, str]
"""(tenant, request id)"""


class PendingCalls:
    """All calls that are still being checked and tokenised, on their way to the core.

    So a `Cancel` reaches them before the core does. Several may share a name.
    """

    def __init__(self) -> None:
        self._by_name: dict[Name, set[asyncio.Event]] = {}

    @contextlib.contextmanager
    def track(self, name: Name) -> Iterator[asyncio.Event]:
        """Track a call until the block ends. Yield what is set once it is cancelled."""
        cancelled = asyncio.Event()
        self._by_name.setdefault(name, set()).add(cancelled)
        try:
            yield cancelled
        finally:
            self._by_name[name].discard(cancelled)
            if not self._by_name[name]:
                del self._by_name[name]

    def cancel(self, name: Name) -> bool:
        """Mark all calls of this name: they end when they reach the core. Return False if there is none."""
        calls = self._by_name.get(name, ())
        for cancelled in calls:
            cancelled.set()
        return bool(calls)
