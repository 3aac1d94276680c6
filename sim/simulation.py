"""Puts routers, store and workers on one clock and plays a trace to them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reporting.quantiles import rank
from router.core.actions import Reject, RequestEnded, TellAccepted
from router.core.capacity.worker_facts import DECODE, PREFILL, WorkerFacts, WorkerLoad
from router.core.core import RouterCore
from router.core.events import Arrived, StepReported, WorkerJoined
from router.core.state import CoreConfig
from router.errors import Refused
from scheduling.memory.preemption import SwapSpeed
from scheduling.request import FinishReason, SamplingParams, Slo, SloClass, StopRules
from sim.clock import Clock
from sim.result import End, RequestResult, SimResult, WorkerResult
from sim.shell import SimShell
from sim.spec import SimSpec
from sim.store.memory_store import MemoryStore
from sim.workers.handoff import Handoffs
from sim.workers.sequence import SimSequence
from sim.workers.shared_names import names_of
from sim.workers.step_log import StepLog
from sim.workers.step_times import DrawnRatios, RecordedRatios, StepTimes
from sim.workers.worker import SimWorker, WorkerCommand
from workloads.trace import TraceRequest

_SAMPLING = SamplingParams()
_ENDS = {FinishReason.EOS, FinishReason.STOP, FinishReason.LENGTH}


@dataclass(slots=True)
class _Record:
    """One request while it is simulated."""

    asked: TraceRequest
    names: tuple[bytes, ...]
    """The names of the blocks of its prompt that others share."""
    accepted: TellAccepted | None = None
    error: str = ""
    refused_for: str = ""
    ended: RequestEnded | None = None
    gaps: list[NDArray[np.float64]] = field(default_factory=list)
    path: list[str] = field(default_factory=list)


class Simulation:
    """Runs once."""

    def __init__(self, spec: SimSpec) -> None:
        self._spec = spec
        self._clock = Clock()
        self._store = MemoryStore(lambda: self._clock.now)
        tenants = {
            name: number for number, name in enumerate(sorted({request.tenant for request in spec.trace}))
        }
        size = spec.profile.block_size
        self._records = [
            _Record(request, names_of(request, tenants[request.tenant], size)) for request in spec.trace
        ]
        self._has_shared = any(request.shared_blocks for request in spec.trace)
        send_token_s = spec.profile.kv_bytes_per_token / spec.profile.handoff_bytes_per_s
        self.handoffs = Handoffs(self._clock, spec.overheads.handoff_s, send_token_s)
        self._workers = {worker.key: worker for worker in self._make_workers()}
        if spec.log_steps:
            for worker in self._workers.values():
                worker.log = StepLog()
        self._shells = [self._make_shell(number) for number in range(spec.num_routers)]

    def run(self) -> SimResult:
        """Play the trace until every request has ended, or its last arrival is `drain_s` ago."""
        clock, spec = self._clock, self._spec
        for shell in self._shells:
            for worker in self._workers.values():
                load = WorkerLoad(free_blocks=worker.facts.num_blocks)
                shell.submit(WorkerJoined(worker.facts, load, spec.profile.cost))
        clock.at(spec.trace[0].at_s, self._arrive, 0)
        until = spec.trace[-1].at_s + spec.drain_s
        clock.run(until)
        return SimResult(
            requests=tuple(_result(record) for record in self._records),
            workers=tuple(_usage(worker) for worker in self._workers.values()),
            ended_s=clock.now,
            num_events=clock.num_calls,
            leftovers=self._leftovers(),
        )

    # Making

    def _make_workers(self) -> Iterator[SimWorker]:
        spec, profile = self._spec, self._spec.profile
        shape = spec.fleet
        names = [(PREFILL, i) for i in range(shape.prefill)] + [(DECODE, i) for i in range(shape.decode)]
        for place, (role, number) in enumerate(names):
            worker_id = f"{role}-{number}"
            facts = WorkerFacts(
                worker_id=worker_id,
                incarnation="0",
                role=role,
                address=f"{worker_id}:0",
                fingerprint=profile.weights_fingerprint,
                block_size=profile.block_size,
                num_blocks=profile.num_blocks,
                max_num_seqs=spec.max_num_seqs or profile.max_num_seqs,
                token_budget=spec.token_budget or profile.token_budget,
            )
            yield SimWorker(
                facts,
                spec.rules,
                profile.cost,
                SwapSpeed(profile.block_bytes, profile.swap_bytes_per_s),
                profile.max_context,
                self._step_times(worker_id, place),
                self._clock,
                spec.overheads,
                self,
                spec.num_routers,
                send_token_s=profile.kv_bytes_per_token / profile.handoff_bytes_per_s,
                stretch=spec.stretch,
            )

    def _step_times(self, worker_id: str, place: int) -> StepTimes:
        recorded = self._spec.step_times.get(worker_id)
        if recorded is not None:
            return RecordedRatios(recorded, self._spec.profile.cost)
        return DrawnRatios(self._spec.profile.cost, self._spec.noise, (self._spec.seed, place))

    def _make_shell(self, number: int) -> SimShell:
        spec = self._spec
        config = CoreConfig(
            router_id=f"router-{number}",
            policy=spec.rules,
            placement=spec.placement,
            queue_capacity=spec.queue_capacity,
        )
        core = RouterCore(config)
        return SimShell(number, core, self._store, self._clock, spec.overheads, self)

    # Clients

    def _arrive(self, index: int) -> None:
        spec, record = self._spec, self._records[index]
        self._clock.at(
            self._clock.now + spec.overheads.receive_s, self._shells[index % spec.num_routers].submit,
            self._arrived(index, record),
        )  # fmt: skip
        if index + 1 < len(self._records):
            self._clock.at(spec.trace[index + 1].at_s, self._arrive, index + 1)

    def _arrived(self, index: int, record: _Record) -> Arrived:
        asked = record.asked
        max_tokens = asked.max_tokens or asked.output_tokens
        return Arrived(
            listener=index + 1,
            tenant=asked.tenant,
            request_id=str(index),
            session=0,
            digest=b"",
            prompt_token_ids=range(asked.prompt_tokens),
            sampling=_SAMPLING,
            seed_given=False,
            stop=StopRules(max_tokens, ignore_eos=max_tokens == asked.output_tokens),
            slo=Slo(
                ttft_ms=asked.ttft_ms,
                tpot_ms=asked.tpot_ms,
                itl_ms=asked.itl_ms,
                allow_at_risk=index in self._spec.at_risk,
                slo_class=SloClass[asked.slo_class.upper()],
            ),
            received_at=asked.at_s,
            prefix_hits=self._prefix_hits(record) if self._has_shared else {},
        )

    def _prefix_hits(self, record: _Record) -> dict[str, int]:
        held = {key: worker.pool.num_held(record.names) for key, worker in self._workers.items()}
        return {key: count for key, count in held.items() if count}

    # What routers say

    def send(self, router: int, command: WorkerCommand) -> None:
        """A command travels to its worker."""
        worker = self._workers[command.worker_key]
        self._clock.at(self._clock.now + self._spec.overheads.command_s, worker.told, router, command)

    def accepted(self, action: TellAccepted) -> None:
        """Kept for the promise in it."""
        self._records[action.listener - 1].accepted = action

    def rejected(self, action: Reject) -> None:
        """The client gives up: an open loop sends nothing twice."""
        record, error = self._records[action.listener - 1], action.error
        record.error = f"{type(error).__name__}: {error}"
        record.refused_for = (
            error.decision.cause.value if isinstance(error, Refused) else type(error).__name__
        )

    def finished(self, action: RequestEnded) -> None:
        """Kept for the outcome in it."""
        _, request_id, _ = action.request_key.split("/")
        self._records[int(request_id)].ended = action

    # What workers say

    def reported(self, router: int, report: StepReported) -> None:
        """A report travels to its router."""
        self._clock.at(self._clock.now + self._spec.overheads.report_s, self._shells[router].submit, report)

    def describe(self, sequence: SimSequence) -> None:
        """Give a sequence what a worker cannot know before it has computed it."""
        record = self._records[int(sequence.spec.fence.request_id)]
        sequence.output_tokens = record.asked.output_tokens
        sequence.block_names = record.names

    def ended(self, sequence: SimSequence) -> None:
        """Its gaps are known."""
        self.handoffs.forget(sequence)
        record = self._records[int(sequence.spec.fence.request_id)]
        record.gaps.extend(sequence.gaps)

    # The end

    def _leftovers(self) -> dict[str, int]:
        """Return what is held although nothing runs; empty once all requests have ended."""
        held = {
            "requests": sum(len(shell.core.state.live) for shell in self._shells),
            "groups": sum(len(shell.core.state.groups) for shell in self._shells),
            "queued": self._store.queue_status().waiting,
            "credits": sum(len(self._store.credits(key)) for key in self._workers),
            "leases": sum(len(self._store.leases(key)) for key in self._workers),
            "sequences": sum(len(worker.sequences) for worker in self._workers.values()),
            "blocks": sum(not worker.pool.is_empty for worker in self._workers.values()),
        }
        return {name: count for name, count in held.items() if count}


def _result(record: _Record) -> RequestResult:
    accepted, ended = record.accepted, record.ended
    promised_s = accepted.promise.predicted_ttft_ms / 1000 if accepted else None
    at_risk = accepted.promise.at_risk if accepted else False
    if ended is None:
        end = End.REFUSED if record.error else End.UNFINISHED
        return RequestResult(
            record.asked, end, promised_ttft_s=promised_s, at_risk=at_risk, error=record.error,
            refused_for=record.refused_for,
        )  # fmt: skip
    outcome = ended.outcome
    marks = outcome.marks
    gaps = np.concatenate(record.gaps) if record.gaps else None
    return RequestResult(
        asked=record.asked,
        end=End.FINISHED if set(outcome.reasons) <= _ENDS else End.FAILED,
        ttft_s=marks.first_token_at - marks.received_at if outcome.has_tokens else None,
        tpot_s=outcome.tpot_s,
        e2e_s=marks.ended_at - marks.received_at,
        queue_s=marks.dispatched_at - marks.received_at,
        max_gap_s=float(gaps.max()) if gaps is not None else None,
        p99_gap_s=_p99(gaps) if gaps is not None else None,
        promised_ttft_s=promised_s,
        at_risk=at_risk,
        cached_tokens=outcome.cached_prompt_tokens,
        attempts=outcome.attempts,
        error=outcome.error,
    )


def _p99(gaps: NDArray[np.float64]) -> float:
    at = rank(len(gaps), 0.99)
    return float(np.partition(gaps, at)[at])


def _usage(worker: SimWorker) -> WorkerResult:
    usage, facts = worker.usage, worker.facts
    samples = max(1, usage.kv_samples)
    ends, sizes = worker.record.token_times()
    slots = usage.held_blocks * facts.block_size
    return WorkerResult(
        name=facts.worker_id,
        role=facts.role,
        num_steps=usage.num_steps,
        num_mixed_steps=usage.num_mixed_steps,
        busy_s=usage.busy_s,
        chunk_tokens=usage.chunk_tokens,
        decode_tokens=usage.decode_tokens,
        preemptions=usage.preemptions,
        recomputed_tokens=usage.recomputed_tokens,
        kv_allocated=usage.held_blocks / samples / facts.num_blocks,
        kv_held=usage.held_tokens / slots if slots else 0.0,
        step_ends=ends,
        step_sizes=sizes,
        steps=tuple(worker.log.steps()) if worker.log is not None else (),
    )


def run(spec: SimSpec) -> SimResult:
    """Simulate; the same specification gives the same result.

    Nothing here is kept by a cycle, so the collector would only walk what is there, over and over.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return Simulation(spec).run()
    finally:
        if was_enabled:
            gc.enable()
