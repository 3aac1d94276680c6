"""Convert messages of the worker protocol to and from the core's events and actions."""

from __future__ import annotations

from baton.v1 import generation_pb2
from baton.worker.v1 import worker_pb2
from router.core.model.actions import (
    SendCancel,
    SendDecode,
    SendDrain,
    SendPreCopy,
    SendPrefill,
    SendReceive,
    SendStopAndCopy,
    WorkerCommand,
)
from router.core.model.events import (
    DECODE,
    PREFILL,
    SequenceFailed,
    StepReported,
    WorkerFacts,
    WorkerJoined,
    WorkerLoad,
    WorkerLoaded,
)
from runtime.rpc.convert import columns_from_pb, fence_to_pb, from_pb, to_pb
from scheduling.columns import PromptLogprobs
from scheduling.cost_model import NUM_COEFFICIENTS, Band, CostModel, StepShape
from scheduling.request import FailureReason, Part, SamplingParams, SequenceSpec

ROLES = {worker_pb2.WORKER_ROLE_PREFILL: PREFILL, worker_pb2.WORKER_ROLE_DECODE: DECODE}


def command_to_pb(command: WorkerCommand, traceparent: str = "") -> worker_pb2.WorkRequest:
    """Return one command of the Work stream; `traceparent` is the span of the attempt that it starts."""
    match command:
        case SendPrefill(_, spec):
            prefill = worker_pb2.Prefill(sequence=spec_to_pb(spec, traceparent))
            return worker_pb2.WorkRequest(prefill=prefill)
        case SendReceive(_, spec, source_address, kind):
            receive = worker_pb2.Receive(
                sequence=spec_to_pb(spec, traceparent),
                source_address=source_address,
                kind=worker_pb2.ReceiveKind.Name(kind),
            )
            return worker_pb2.WorkRequest(receive=receive)
        case SendDecode(_, spec):
            decode = worker_pb2.Decode(sequence=spec_to_pb(spec, traceparent))
            return worker_pb2.WorkRequest(decode=decode)
        case SendCancel(_, handles):
            return worker_pb2.WorkRequest(cancel=worker_pb2.Cancel(handles=handles))
        case SendPreCopy() | SendStopAndCopy():
            return _offer_to_pb(command)
        case SendDrain():
            return worker_pb2.WorkRequest(drain=worker_pb2.Drain())


def _offer_to_pb(command: SendPreCopy | SendStopAndCopy) -> worker_pb2.WorkRequest:
    if isinstance(command, SendPreCopy):
        part = _part_to_pb(command.part)
        lend = worker_pb2.Lend(handle=command.handle, part=part, num_blocks=command.num_blocks)
        return worker_pb2.WorkRequest(lend=lend)
    parts = [_part_to_pb(part) for part in command.parts]
    return worker_pb2.WorkRequest(hand_over=worker_pb2.HandOver(handle=command.handle, parts=parts))


def _part_to_pb(part: Part) -> worker_pb2.Part:
    return to_pb(worker_pb2.Part, part, fence=fence_to_pb(part.fence))


def spec_to_pb(spec: SequenceSpec, traceparent: str = "") -> worker_pb2.SequenceSpec:
    """Return a group of sequences, with every field set that it has."""
    source = spec.prefix_source
    return to_pb(
        worker_pb2.SequenceSpec,
        spec,
        fence=fence_to_pb(spec.fence),
        sampling=sampling_to_pb(spec.sampling),
        stop=to_pb(generation_pb2.StopRules, spec.stop),
        bad_words=[worker_pb2.TokenSequence(token_ids=word) for word in spec.sampling.bad_words],
        grammar=spec.sampling.grammar,
        reasoning_opens=spec.stop.reasoning_opens,
        reasoning_closes=spec.stop.reasoning_closes,
        prefix_source=None if source is None else to_pb(worker_pb2.PrefixSource, source),
        traceparent=traceparent,
    )


def sampling_to_pb(sampling: SamplingParams) -> generation_pb2.SamplingParams:
    """Return the parameters with every field set, except for log-probabilities that are not requested.

    Bad words are left out: a worker has no tokenizer, and receives their tokens.
    """
    return to_pb(generation_pb2.SamplingParams, sampling, logit_bias=dict(sampling.logit_bias), bad_words=())


def joined_from_pb(welcome: worker_pb2.Welcome, address: str) -> WorkerJoined:
    """Return the event of a worker that was reached at `address`."""
    facts = from_pb(
        WorkerFacts,
        welcome,
        role=ROLES[welcome.role],
        address=address,
        adapters=dict(welcome.adapters),
        num_stages=max(1, welcome.num_stages),
    )
    return WorkerJoined(facts, load_from_pb(welcome.load), cost_from_pb(welcome.cost_model))


def load_from_pb(load: worker_pb2.WorkerLoad) -> WorkerLoad:
    """Return a worker's load."""
    return WorkerLoad(
        step=load.step,
        running=load.running,
        waiting=load.waiting,
        pending_prefill_tokens=load.pending_prefill_tokens,
        free_blocks=load.free_blocks,
        cached_blocks=load.cached_blocks,
        context_tokens=load.context_tokens,
        draining=load.draining,
        preempted=load.preempted,
    )


def heartbeat_from_pb(worker_key: str, heartbeat: worker_pb2.Heartbeat) -> WorkerLoaded:
    """Return the event of a heartbeat."""
    return WorkerLoaded(worker_key, load_from_pb(heartbeat.load), heartbeat.running_step_seconds)


def report_from_pb(worker_key: str, report: worker_pb2.StepReport) -> StepReported:
    """Return the event of one step's report."""
    return StepReported(
        worker_key=worker_key,
        tokens=columns_from_pb(report.tokens),
        load=load_from_pb(report.load),
        step_s=report.step_seconds,
        failures=tuple(
            from_pb(SequenceFailed, failure, reason=_failure_reason(failure.reason))
            for failure in report.failures
        ),
        prefilled=tuple(report.prefilled_handles),
        cached_tokens=tuple(report.cached_tokens),
        cost=cost_from_pb(report.cost_model) if report.HasField("cost_model") else None,
        shape=from_pb(StepShape, report.shape) if report.HasField("shape") else None,
        preempted=tuple(report.preempted_handles),
        resumed=tuple(report.resumed_handles),
        parked=tuple(report.parked_handles),
        released=tuple(report.released_handles),
        prompt_logprobs=tuple(from_pb(PromptLogprobs, piece) for piece in report.prompt_logprobs),
    )


def _failure_reason(value: int) -> FailureReason:
    try:
        return FailureReason(value)
    except ValueError:
        return FailureReason.INTERNAL


def cost_from_pb(cost: worker_pb2.CostModel) -> CostModel:
    """Return a worker's measured cost model. Until there is one, steps count as free."""
    if not cost.coefficients:
        return CostModel((0.0,) * NUM_COEFFICIENTS, 0.0)
    ratios = {name: getattr(cost, name) or 1.0 for name in ("ratio_q10", "ratio_q50", "ratio_q95")}
    band = from_pb(Band, cost.chunk_band) if cost.HasField("chunk_band") else None
    return from_pb(CostModel, cost, **ratios, chunk_band=band)


def load_to_pb(load: WorkerLoad) -> worker_pb2.WorkerLoad:
    """Return a worker's load for operators."""
    return to_pb(worker_pb2.WorkerLoad, load)


def role_to_pb(role: str) -> worker_pb2.WorkerRole:
    """Return the protocol's value of a role."""
    return next(value for value, name in ROLES.items() if name == role)
