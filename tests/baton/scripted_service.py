"""A router that speaks the real contract over a real connection, and says what a test has written down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from baton.operators.v1 import fleet_pb2, fleet_pb2_grpc
from baton.v1 import generation_pb2, inference_pb2, inference_pb2_grpc
from router.outputs import OutputReader
from tests.baton.scripted_many import CallAborted, ManyScripts, OwnContext
from tests.baton.scripted_reading import ScriptedReading
from tests.patience import PATIENCE_S

Pb = inference_pb2.GenerationEvent


@dataclass(frozen=True)
class Fail:
    """Ends the call with a status and its details."""

    code: grpc.StatusCode
    message: str = "scripted"
    details: tuple[Message, ...] = ()


@dataclass(frozen=True)
class FailShared:
    """Ends a GenerateMany call with everything on it. The script goes on if the call is its own."""

    code: grpc.StatusCode


class Hang:
    """Says nothing more until the call is over."""


class Silence:
    """Ends the call as if all had been said."""


@dataclass(frozen=True)
class Act:
    """Does something to the connection or the router, and says nothing more."""

    act: Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Wait:
    """Goes on once the event is set."""

    until: asyncio.Event


Step = Pb | Fail | FailShared | Hang | Silence | Act | Wait
BREAK = Fail(grpc.StatusCode.UNAVAILABLE, "the router went away")
HANG = Hang()


def accepted(seed: int = 7, request_id: str = "r", **formats: Any) -> Pb:
    """The first event; `formats` are those of the chat's output."""
    promise = inference_pb2.LatencyPromise(predicted_ttft_ms=20, predicted_tpot_ms=5)
    told = inference_pb2.Accepted(
        request_id=request_id, seed=seed, prompt_tokens=3, promise=promise, **formats
    )
    return Pb(accepted=told)


def queued() -> Pb:
    return Pb(queued=inference_pb2.Queued(position=1, work_ahead_tokens=100, predicted_ttft_ms=30))


def tokens(first_index: int, *token_ids: int, choice: int = 0, text: str | None = None) -> Pb:
    shown = "".join(f"<{token}>" for token in token_ids) if text is None else text
    return Pb(
        tokens=inference_pb2.Tokens(choice=choice, first_index=first_index, token_ids=token_ids, text=shown)
    )


def ended(output_tokens: int, choice: int = 0, reason: int = generation_pb2.FINISH_REASON_LENGTH) -> Pb:
    return Pb(
        choice_finished=inference_pb2.ChoiceFinished(
            choice=choice,
            reason=reason,  # type: ignore[arg-type]  # also a value this client does not know
            output_tokens=output_tokens,
        )
    )


def finished(error: str = "") -> Pb:
    return Pb(
        finished=inference_pb2.Finished(
            usage=inference_pb2.Usage(prompt_tokens=3, output_tokens=4, attempts=1),
            delivery=inference_pb2.Delivery(
                ttft_ms=12, tpot_ms=5.5, max_gap_ms=8, e2e_ms=40, ttft_kept=True, tpot_kept=True
            ),
            split=inference_pb2.TimeSplit(queue_ms=1, prefill_ms=11, handoff_ms=3, decode_ms=24, relay_ms=1),
            error=error,
            path=inference_pb2.PATH_DISAGGREGATED,
        )
    )


WHOLE: tuple[Step, ...] = (accepted(), queued(), tokens(0, 10), tokens(1, 11, 12), ended(3), finished())


def _answered(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def answer(self: _Inference | _Fleet, request: Any, context: Any) -> Any:
        return await self._router.answer(name, request, context)

    return answer


class _Inference(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, router: ScriptedRouter) -> None:
        self._router = router

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for event in self._router.play("Generate", request, context):
            yield inference_pb2.GenerateResponse(event=event)

    async def Resume(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for event in self._router.play("Resume", request, context):
            yield inference_pb2.ResumeResponse(event=event)

    async def GenerateMany(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        self._router.heard("GenerateMany", None)
        call = ManyScripts(lambda request, own: self._router.play("Generate", request, own))
        try:
            async for response in call.responses(requests):
                yield response
        except CallAborted as error:
            await context.abort(error.code, "scripted")
        finally:
            self._router.heard("GenerateMany over", None)

    GenerateOnce = _answered("GenerateOnce")
    Quote = _answered("Quote")
    CountTokens = _answered("CountTokens")
    Detokenize = _answered("Detokenize")
    ListModels = _answered("ListModels")

    async def Cancel(self, request: Any, context: Any) -> Any:
        self._router.heard("Cancel", request)
        return inference_pb2.CancelResponse(cancelled=request.request_id in self._router.running)


class _Fleet(fleet_pb2_grpc.FleetServiceServicer):
    def __init__(self, router: ScriptedRouter) -> None:
        self._router = router

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self._router.heard("Watch", request)
        while self._router.live is not None:
            yield self._router.live()
            await asyncio.sleep(request.interval_ms / 1000)
        for snapshot in self._router.snapshots:
            yield snapshot
        if self._router.watch_hangs:
            await asyncio.Event().wait()

    Describe = _answered("Describe")

    async def Drain(self, request: Any, context: Any) -> Any:
        self._router.heard("Drain", request)
        return fleet_pb2.DrainResponse(draining=request.worker_id in self._router.running)


class ScriptedRouter:
    """`scripts` are played one for each Generate or Resume, the last one again and again; `answers` are the
    unary calls' answers by name, a `Fail` among them failing the call once.

    `heard_calls` are all calls in order; `running` the request (or worker) ids that Cancel and Drain know.
    Watch yields what `live` returns, each interval, or else `snapshots` once. The router `reads` the texts of
    its scripts, unless it is an old one.
    """

    def __init__(self, *scripts: Sequence[Step], **answers: Message | Fail) -> None:
        self.scripts = list(scripts) or [WHOLE]
        self.answers = answers
        self.listen = "127.0.0.1:0"
        self.running: set[str] = set()
        self.snapshots: list[fleet_pb2.WatchResponse] = []
        self.watch_hangs = True
        self.reads = True
        self._reading = ScriptedReading()
        self.live: Callable[[], fleet_pb2.WatchResponse] | None = None
        self.heard_calls: list[tuple[str, Any]] = []
        self.address = ""
        self._changed = asyncio.Condition()
        self._server: Any = None
        self._notices: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", 1 << 20)])
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(_Inference(self), self._server)
        fleet_pb2_grpc.add_FleetServiceServicer_to_server(_Fleet(self), self._server)
        port = self._server.add_insecure_port(self.listen)
        self.address = f"{self.listen.rpartition(':')[0]}:{port}"
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Breaks every call."""
        await self._server.stop(grace=None)

    def calls(self, name: str) -> list[Any]:
        return [request for called, request in self.heard_calls if called == name]

    def heard(self, name: str, request: Any) -> None:
        self.heard_calls.append((name, request))
        notice = asyncio.get_running_loop().create_task(self._notify())
        self._notices.add(notice)
        notice.add_done_callback(self._notices.discard)

    async def until_heard(self, name: str, times: int = 1) -> Any:
        """The first call of that name, waiting until there are so many."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: len(self.calls(name)) >= times)
        return self.calls(name)[0]

    async def play(self, name: str, request: Any, context: Any) -> AsyncIterator[Pb]:
        self.heard(name, request)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        reader: OutputReader | None = None
        try:
            for step in script:
                if isinstance(step, Fail):
                    await _fail(context, step)
                elif isinstance(step, FailShared):
                    if isinstance(context, OwnContext):
                        raise CallAborted(step.code)
                elif isinstance(step, Hang | Act):
                    if isinstance(step, Act):
                        await step.act()
                    await asyncio.Event().wait()
                elif isinstance(step, Wait):
                    await step.until.wait()
                elif isinstance(step, Silence):
                    return
                elif self.reads:
                    said, reader = self._reading.read(request, step, reader)
                    yield said
                else:
                    yield step
        except (asyncio.CancelledError, GeneratorExit):
            self.heard(f"{name} let go", request)
            raise

    async def answer(self, name: str, request: Any, context: Any) -> Any:
        self.heard(name, request)
        answer = self.answers[name]
        if isinstance(answer, Fail):
            await _fail(context, answer)
        return answer

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def _fail(context: Any, fail: Fail) -> None:
    status = status_pb2.Status(code=fail.code.value[0], message=fail.message)
    for detail in fail.details:
        status.details.add().Pack(detail)
    trailer = ("grpc-status-details-bin", status.SerializeToString())
    await context.abort(fail.code, fail.message, trailing_metadata=(trailer,))


def bad_field(field: str, description: str) -> error_details_pb2.BadRequest:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
    return error_details_pb2.BadRequest(field_violations=[violation])


def because(reason: str) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=reason, domain="baton.v1")


def retry_after(seconds: float) -> error_details_pb2.RetryInfo:
    info = error_details_pb2.RetryInfo()
    info.retry_delay.FromNanoseconds(round(seconds * 1e9))
    return info
