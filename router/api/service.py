"""The public door: InferenceService, a thin translation to the core and back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from baton.v1 import inference_pb2, inference_pb2_grpc
from router.api.client_stream import ClientStream, StreamItem, TokenRun
from router.api.convert import (
    chat_options_from_pb,
    content_digest,
    event_to_pb,
    finished_to_pb,
    logprobs_to_pb,
    prompt_logprobs_to_pb,
    quote_to_pb,
    reason_to_pb,
    request_from_pb,
)
from router.api.pending_calls import PendingCalls
from router.api.sizes import check_chat_size, check_sizes
from router.api.validation import RawRequest, check_before_tokenising, check_model, check_name
from router.auth.auth import Bill, Door, Patience
from router.auth.principal import as_caller, tenant_of_call
from router.core.actions import TellAccepted, TellChoiceFinished, TellFinished, TellPromptLogprobs
from router.core.events import CancelAsked
from router.errors import DeadlineExpired, RouterError, ValidationError
from router.links.shell import Shell
from router.preprocess.model_facts import ModelFacts
from router.preprocess.preprocessor import Preprocessor

Context = grpc.aio.ServicerContext[Any, Any]
ResponseKind = type[inference_pb2.GenerateResponse] | type[inference_pb2.ResumeResponse]


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """See `inference.proto`."""

    def __init__(
        self, shell: Shell, preprocessor: Preprocessor, facts: ModelFacts, door: Door | None = None
    ) -> None:
        self._shell = shell
        self._door = door
        self._preprocessor = preprocessor
        self._facts = facts
        self._arriving = PendingCalls()

    def add_to(self, server: grpc.aio.Server) -> str:
        """Serve on `server`; returns the service's full name, for reflection."""
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, server)
        return inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name

    async def Generate(  # type: ignore[override]  # grpc.aio also takes a coroutine that writes
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> None:
        async with self._listening(request) as stream:
            await self._pour(stream, inference_pb2.GenerateResponse, context)

    async def Resume(  # type: ignore[override]  # as Generate
        self, request: inference_pb2.ResumeRequest, context: Context
    ) -> None:
        async with self._listening(request.request, request) as stream:
            await self._pour(stream, inference_pb2.ResumeResponse, context)

    async def GenerateOnce(
        self, request: inference_pb2.GenerateOnceRequest, context: Context
    ) -> inference_pb2.GenerateOnceResponse:
        answer = _Answer()
        async with self._listening(request.request) as stream:
            async for item in _until_finished(stream):
                answer.add(item)
        return answer.message(self._shell.now())

    async def Cancel(
        self, request: inference_pb2.CancelRequest, context: Context
    ) -> inference_pb2.CancelResponse:
        if not request.request_id:
            raise ValidationError("request_id", "", "the id of the request that is to end")
        check_name("request_id", request.request_id)
        check_name("tenant", request.tenant)
        tenant = tenant_of_call(request.tenant)
        name = tenant, request.request_id
        arriving = self._arriving.cancel(name)
        running = arriving or self._shell.core.is_running(tenant, request.request_id)
        self._shell.submit(CancelAsked(tenant, request.request_id))
        return inference_pb2.CancelResponse(cancelled=running)

    async def Quote(
        self, request: inference_pb2.QuoteRequest, context: Context
    ) -> inference_pb2.QuoteResponse:
        await self._admit(Patience())
        check_sizes(request.request, self._facts)
        raw, shell = as_caller(request_from_pb(request.request)), self._shell
        checked = await self._preprocessor.check(raw)
        quoted = await shell.quote(
            prompt_tokens=len(checked.prompt_token_ids),
            num_choices=checked.sampling.n,
            max_tokens=checked.stop.max_tokens,
            slo=checked.slo,
            waited_s=self._preprocessor.tokenised_s(raw),
            hits=await self._preprocessor.prefix_hits(raw.tenant, checked),
        )
        return quote_to_pb(quoted)

    async def CountTokens(
        self, request: inference_pb2.CountTokensRequest, context: Context
    ) -> inference_pb2.CountTokensResponse:
        kind = request.WhichOneof("input")
        check_chat_size(request.chat)
        messages = tuple((one.role, one.content) for one in request.chat.messages)
        raw = RawRequest(
            model=request.model,
            text=request.text if kind == "text" else None,
            messages=messages if kind == "chat" else None,
            chat_options=chat_options_from_pb(request.chat),
        )
        await self._admit(Patience())
        check_before_tokenising(raw, self._facts, inputs=("text", "chat"))
        token_ids = await self._preprocessor.tokenise(raw)
        return inference_pb2.CountTokensResponse(count=len(token_ids), token_ids=token_ids)

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: Context
    ) -> inference_pb2.DetokenizeResponse:
        skips = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        await self._admit(Patience())
        check_model(request.model, self._facts)
        text = await self._preprocessor.detokenise(request.token_ids, skip_special_tokens=skips)
        return inference_pb2.DetokenizeResponse(text=text)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        facts, fleet = self._facts, self._shell.discovery.facts
        model = inference_pb2.Model(
            name=facts.name,
            architecture=facts.architecture,
            max_context_tokens=facts.max_context_tokens,
            vocab_size=facts.vocab_size,
            has_chat_template=facts.chat_template is not None,
            fingerprint="" if fleet is None else fleet.fingerprint,
        )
        return inference_pb2.ListModelsResponse(models=[model])

    @contextlib.asynccontextmanager
    async def _listening(
        self, message: inference_pb2.GenerateRequest, resume: inference_pb2.ResumeRequest | None = None
    ) -> AsyncIterator[ClientStream]:
        """All that a call is to hear; however it ends, the core learns that it has."""
        shell = self._shell
        received_at = shell.now()
        listener, stream = shell.open_stream()
        bill: Bill | None = None
        refusal: RouterError | None = None
        patience = Patience.of_call(resumed=resume is not None)
        try:
            try:
                raw = self._raw(message, resume)
                digest = content_digest(message)
                caller = as_caller(raw)
                name = caller.tenant, caller.request_id
                with self._arriving.entered(name) as arrival:
                    await self._admit(patience)
                    async with self._in_time(raw.deadline_ms, received_at):
                        event = await self._preprocessor.arrival(
                            caller, digest, received_at, listener, resumed=resume is not None
                        )
                    if self._door is not None:
                        output = event.stop.max_tokens * event.sampling.n
                        received = sum(len(one.token_ids) for one in event.received)
                        num_prompt = len(event.prompt_token_ids)
                        bill = await self._door.charge(num_prompt, output, received, patience)
            except RouterError as error:
                shell.metrics.requests.labels(type(error).__name__).inc()
                raise
            shell.submit(event)
            if arrival.cancelled:
                shell.submit(CancelAsked(*name))
            yield stream
        except RouterError as error:
            refusal = error
            raise
        finally:
            shell.close_stream(listener)
            if bill is not None:
                self._settle(bill, stream, refusal)

    def _raw(
        self, message: inference_pb2.GenerateRequest, resume: inference_pb2.ResumeRequest | None
    ) -> RawRequest:
        if resume is None:
            check_sizes(message, self._facts)
            return request_from_pb(message)
        check_sizes(message, self._facts, resume.received)
        return request_from_pb(
            message,
            resume.session,
            resume.received,
            resume.failed_attempts,
            resume.received_prompt_logprobs,
        )

    async def _admit(self, patience: Patience) -> None:
        """What cannot wait is new, and is refused while this router lags."""
        if not patience.left_s:
            self._shell.ticker.refuse_if_busy()
        if self._door is not None:
            await self._door.admit(patience)

    @contextlib.asynccontextmanager
    async def _in_time(self, deadline_ms: int | None, received_at: float) -> AsyncIterator[None]:
        """Checking and tokenising end with the deadline, which is the core's from then on."""
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

    def _settle(self, bill: Bill, stream: ClientStream, refusal: RouterError | None) -> None:
        """A call that broke pays for all it could have had: what it still runs on is not known here."""
        assert self._door is not None, "a bill is the door's"
        if stream.finished is not None:
            self._door.settle(bill, bill.max_output_tokens - stream.finished.outcome.output_tokens)
        elif refusal is not None and not stream.accepted:
            self._door.settle(bill, bill.total)  # refused

    async def _pour(self, stream: ClientStream, response: ResponseKind, context: Context) -> None:
        """Write a stream to its end. The token path: no generator stands between buffer and connection."""
        first_handed_at: float | None = None
        while True:
            for item in await stream.take():
                now = self._shell.now()
                if first_handed_at is None and isinstance(item, TokenRun):
                    first_handed_at = now
                await context.write(response(event=event_to_pb(item, first_handed_at, now)))
                if isinstance(item, TellFinished):
                    return


async def _until_finished(stream: ClientStream) -> AsyncIterator[StreamItem]:
    while True:
        for item in await stream.take():
            yield item
            if isinstance(item, TellFinished):
                return


class _Answer:
    """Collects a stream into one message."""

    def __init__(self) -> None:
        self._accepted: TellAccepted | None = None
        self._finished: TellFinished | None = None
        self._choices: dict[int, inference_pb2.Choice] = {}
        self._prompt_logprobs: list[inference_pb2.TokenLogprobs] = []

    def add(self, item: StreamItem) -> None:
        match item:
            case TellAccepted():
                self._accepted = item
            case TokenRun():
                choice = self._choice(item.choice)
                choice.token_ids.extend(item.token_ids)
                choice.text += "".join(item.texts)
                choice.logprobs.extend(logprobs_to_pb(one) for one in item.logprobs)
            case TellPromptLogprobs():
                self._prompt_logprobs.extend(prompt_logprobs_to_pb(item.told))
            case TellChoiceFinished():
                choice = self._choice(item.choice)
                choice.finish_reason = reason_to_pb(item.reason)
                if item.matched is not None and item.matched.stop_string is not None:
                    choice.stop_string = item.matched.stop_string
                elif item.matched is not None and item.matched.stop_token_id is not None:
                    choice.stop_token_id = item.matched.stop_token_id
            case TellFinished():
                self._finished = item

    def _choice(self, index: int) -> inference_pb2.Choice:
        if index not in self._choices:
            self._choices[index] = inference_pb2.Choice(index=index)
        return self._choices[index]

    def message(self, now: float) -> inference_pb2.GenerateOnceResponse:
        assert self._accepted is not None, "a stream begins"
        assert self._finished is not None, "and ends"
        return inference_pb2.GenerateOnceResponse(
            request_id=self._accepted.request_id,
            choices=[self._choices[index] for index in sorted(self._choices)],
            finished=finished_to_pb(self._finished.outcome, None, now),
            seed=self._accepted.seed,
            prompt_logprobs=self._prompt_logprobs,
        )
