"""Convert commands and reports from and to the worker protocol; errors name the field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from baton.worker.v1 import worker_pb2
from engine.core.commands import Decode, Prefill
from engine.core.report import Load, StepReport
from runtime.rpc.convert import columns_to_pb, cost_to_pb, fence_from_pb, from_pb, to_pb
from runtime.state.records import WorkerRecord
from scheduling.cost_model import CostModel
from scheduling.request import Part, PrefixSource, ReceiveKind, SamplingParams, SequenceSpec, StopRules
from worker.commands import CancelHandles, DrainWorker, PreCopy, ReceiveFrom, RouterCommand, StopAndCopy
from worker.config import WorkerConfig
from worker.engine.engine import Computing
from worker.errors import MalformedCommandError
from worker.streams.probes import ProbedStream

ROLES = {"prefill": worker_pb2.WORKER_ROLE_PREFILL, "decode": worker_pb2.WORKER_ROLE_DECODE}
# The router sets every field: a second set of defaults here could differ from its own.
_SAMPLING_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "n",
)
_STOP_FIELDS: tuple[Literal["max_tokens", "skip_special_tokens"], ...] = ("max_tokens", "skip_special_tokens")


def command_from_pb(message: worker_pb2.WorkRequest) -> RouterCommand:
    """Convert a command of a router; raise MalformedCommandError naming the field that is wrong."""
    match message.WhichOneof("command"):
        case "prefill":
            return Prefill(spec_from_pb(message.prefill.sequence))
        case "decode":
            return Decode(spec_from_pb(message.decode.sequence))
        case "receive":
            return _receive_from_pb(message.receive)
        case "cancel":
            return CancelHandles(tuple(message.cancel.handles))
        case "drain":
            return DrainWorker()
        case "lend" | "hand_over":
            return _offer_from_pb(message)
        case kind:
            sentence = "command is empty; accepted: one of the commands of WorkRequest"
            if kind == "hello":
                sentence = "hello came twice; accepted: once, first"
            raise MalformedCommandError(None, sentence)


def traceparent_from_pb(message: worker_pb2.WorkRequest) -> str:
    """Return the span of the attempt that a command starts; empty if it starts none, or is not traced."""
    kind = message.WhichOneof("command")
    if kind in ("prefill", "decode", "receive"):
        sequence: worker_pb2.SequenceSpec = getattr(message, kind).sequence
        return sequence.traceparent
    return ""


def _receive_from_pb(message: worker_pb2.Receive) -> ReceiveFrom:
    spec = spec_from_pb(message.sequence)
    if not message.source_address:
        raise MalformedCommandError(spec.handle, "source_address is empty; accepted: HOST:PORT")
    kind = message.kind or ReceiveKind.PROMPT
    if kind not in list(ReceiveKind):
        raise MalformedCommandError(spec.handle, f"kind is {kind}; accepted: one of ReceiveKind")
    return ReceiveFrom(spec, ReceiveKind(kind), message.source_address)


def _offer_from_pb(message: worker_pb2.WorkRequest) -> PreCopy | StopAndCopy:
    if message.WhichOneof("command") == "lend":
        lend = message.lend
        return PreCopy(lend.handle, _part_from_pb(lend.part), lend.num_blocks)
    parts = tuple(_part_from_pb(part) for part in message.hand_over.parts)
    return StopAndCopy(message.hand_over.handle, parts)


def _part_from_pb(message: worker_pb2.Part) -> Part:
    if not message.fence.request_id:
        raise MalformedCommandError(message.handle, "fence.request_id is empty; accepted: the request's id")
    return from_pb(Part, message, fence=fence_from_pb(message.fence))


def spec_from_pb(message: worker_pb2.SequenceSpec) -> SequenceSpec:
    handle = message.handle
    if not message.fence.request_id:
        raise MalformedCommandError(handle, "fence.request_id is empty; accepted: the request's id")
    if not message.prompt_token_ids:
        raise MalformedCommandError(handle, "prompt_token_ids is empty; accepted: at least one token")
    if not message.choices:
        raise MalformedCommandError(handle, "choices is empty; accepted: at least one index")
    if len(set(message.choices)) < len(message.choices):
        raise MalformedCommandError(handle, f"choices is {list(message.choices)}; accepted: each index once")
    return from_pb(
        SequenceSpec,
        message,
        fence=fence_from_pb(message.fence),
        sampling=_sampling_from_pb(handle, message),
        stop=_stop_from_pb(handle, message),
        prefix_source=_prefix_source_from_pb(message),
    )


def _prefix_source_from_pb(message: worker_pb2.SequenceSpec) -> PrefixSource | None:
    if not message.HasField("prefix_source"):
        return None
    source = message.prefix_source
    if not source.address or not source.incarnation:
        found = f"prefix_source is {source.incarnation!r} at {source.address!r}"
        raise MalformedCommandError(
            message.handle, f"{found}; accepted: a process and HOST:PORT, or no source"
        )
    return from_pb(PrefixSource, source)


def _sampling_from_pb(handle: int, sequence: worker_pb2.SequenceSpec) -> SamplingParams:
    message = sequence.sampling
    for field in _SAMPLING_FIELDS:
        if not message.HasField(field):
            raise MalformedCommandError(handle, f"sampling.{field} is not set; accepted: every field set")
    return from_pb(
        SamplingParams,
        message,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        bad_words=tuple(tuple(word.token_ids) for word in sequence.bad_words),
        grammar=sequence.grammar,
    )


def _stop_from_pb(handle: int, sequence: worker_pb2.SequenceSpec) -> StopRules:
    message = sequence.stop
    for field in _STOP_FIELDS:
        if not message.HasField(field):
            raise MalformedCommandError(handle, f"stop.{field} is not set; accepted: every field set")
    return from_pb(
        StopRules,
        message,
        reasoning_opens=tuple(sequence.reasoning_opens),
        reasoning_closes=tuple(sequence.reasoning_closes),
    )


def load_to_pb(load: Load, *, draining: bool) -> worker_pb2.WorkerLoad:
    return to_pb(worker_pb2.WorkerLoad, load, draining=draining)


def welcome_to_pb(
    record: WorkerRecord,
    config: WorkerConfig,
    computing: Computing,
    cost: CostModel,
    load: Load,
    stream: ProbedStream,
    *,
    draining: bool,
) -> worker_pb2.WorkResponse:
    welcome = to_pb(
        worker_pb2.Welcome,
        record,
        role=ROLES[record.role],
        max_num_seqs=config.max_num_seqs,
        token_budget=config.token_budget,
        cost_model=cost_to_pb(cost),
        load=load_to_pb(load, draining=draining),
        stream=stream.number,
        probe_key=stream.key,
        dtype=computing.dtype,
        native_ops=computing.native_ops,
    )
    return worker_pb2.WorkResponse(welcome=welcome)


def heartbeat_to_pb(load: Load, running_step_s: float, *, draining: bool) -> worker_pb2.WorkResponse:
    heartbeat = worker_pb2.Heartbeat(
        load=load_to_pb(load, draining=draining), running_step_seconds=running_step_s
    )
    return worker_pb2.WorkResponse(heartbeat=heartbeat)


def report_to_pb(
    report: StepReport, *, draining: bool, cost: CostModel | None = None
) -> worker_pb2.WorkResponse:
    """Convert a report whose handles are the router's; `cost` is given if it changed since the last one."""
    step = worker_pb2.StepReport(
        tokens=columns_to_pb(report.tokens),
        load=load_to_pb(report.load, draining=draining),
        step_seconds=report.step_seconds,
        failures=_failures_to_pb(report),
        prompt_logprobs=[to_pb(worker_pb2.PromptLogprobs, piece) for piece in report.prompt_logprobs],
        prefilled_handles=[prefilled.handle for prefilled in report.prefilled],
        cached_tokens=[prefilled.cached_tokens for prefilled in report.prefilled],
        preempted_handles=report.preempted,
        resumed_handles=report.resumed,
        parked_handles=report.parked,
        released_handles=report.released,
        shape=None if report.shape is None else to_pb(worker_pb2.StepShape, report.shape),
        cost_model=None if cost is None else cost_to_pb(cost),
    )
    return worker_pb2.WorkResponse(step=step)


def _failures_to_pb(report: StepReport) -> Iterable[worker_pb2.SequenceFailure]:
    return [
        worker_pb2.SequenceFailure(
            handle=failure.handle,
            reason=worker_pb2.FailureReason.Name(failure.reason),
            message=failure.message,
            session=failure.session,
            session_age_seconds=failure.session_age_seconds,
        )
        for failure in report.failures
    ]
