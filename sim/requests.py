"""The requests of a simulation: what each one asks for, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from router.core.model.actions import Reject, RequestEnded, TellAccepted
from router.core.model.events import Arrived
from router.errors import Refused
from router.request import Request
from scheduling.admission.prefixes import PrefixHits
from scheduling.request import FinishReason, Program, SamplingParams, Slo, SloClass, StopRules
from sim.reporting.quantiles import rank
from sim.result import End, RequestResult
from sim.sequence import SimSequence
from sim.spec import SimSpec
from sim.workloads.trace import TraceRequest

NAME_BYTES = 16
_SAMPLING = SamplingParams()
_ENDS = {FinishReason.EOS, FinishReason.STOP, FinishReason.LENGTH}


@dataclass(slots=True)
class _Record:
    """One request while it is simulated."""

    asked: TraceRequest
    tenant: int
    names: tuple[bytes, ...] = ()
    """The names of the blocks of its prompt that others share, from its arrival to its end."""
    accepted: TellAccepted | None = None
    error: str = ""
    refused_for: str = ""
    ended: RequestEnded | None = None
    gaps: list[NDArray[np.float64]] = field(default_factory=list)


def _names_of(asked: TraceRequest, tenant: int, block_size: int) -> tuple[bytes, ...]:
    """Return the names of the full blocks of a request's shared prefix, chained by its pieces."""
    tokens, pieces = asked.shared_block_tokens, asked.shared_blocks
    num_blocks = min(len(pieces) * tokens, asked.prompt_tokens) // block_size
    chain = blake2b(f"{tenant} {tokens}".encode(), digest_size=NAME_BYTES)
    chains = []
    for piece in pieces:
        chain.update(f" {piece}".encode())
        chains.append(chain.digest())
    return tuple(
        chains[((index + 1) * block_size - 1) // tokens] + index.to_bytes(4) for index in range(num_blocks)
    )


class Requests:
    """The requests of a trace by their place in it, which is their id; listener n + 1 waits for request n."""

    def __init__(self, spec: SimSpec, over: Callable[[int, float | None], None]) -> None:
        """`over` is called with the place of each call of a program that ends, and with the seconds after
        which it may come back if it was refused.
        """
        self._at_risk = spec.at_risk
        self._states_programs = spec.states_programs
        self._over = over
        self._starts = [request.at_s for request in spec.trace]
        tenants = {
            name: number for number, name in enumerate(sorted({request.tenant for request in spec.trace}))
        }
        self._block_size = spec.profile.block_size
        self._records = [_Record(request, tenants[request.tenant]) for request in spec.trace]

    def name_blocks(self, place: int) -> tuple[bytes, ...]:
        """Name the blocks of a prompt that others share, until its request has ended."""
        record = self._records[place]
        record.names = _names_of(record.asked, record.tenant, self._block_size)
        return record.names

    def left_s(self, place: int, now: float) -> float:
        """Return the time that is left for the program of a call."""
        turn = self._records[place].asked.turn
        assert turn is not None, "a call of a program"
        return self._starts[place] + turn.deadline_s - now

    def arrived(self, place: int, prefix_hits: dict[str, int], now: float) -> Arrived:
        """Return a request's arrival at a router; `prefix_hits` are its leading blocks that workers hold."""
        record = self._records[place]
        asked = record.asked = replace(record.asked, at_s=now) if record.asked.turn else record.asked
        max_tokens = asked.max_tokens or asked.output_tokens
        return Arrived(
            listener=place + 1,
            request=Request(
                tenant=asked.tenant,
                request_id=str(place),
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
                    allow_at_risk=place in self._at_risk,
                    slo_class=SloClass[asked.slo_class.upper()],
                ),
                received_at=asked.at_s,
                program=self._program(place, now),
            ),
            hits=PrefixHits(prefix_hits),
        )

    def _program(self, place: int, now: float) -> Program | None:
        turn = self._records[place].asked.turn
        if turn is None or not self._states_programs:
            return None
        return Program(str(turn.program), max(0, round(1000 * self.left_s(place, now))))

    # What routers say

    def accepted(self, action: TellAccepted) -> None:
        """Keep the promise that a request was accepted with."""
        self._records[action.listener - 1].accepted = action

    def rejected(self, action: Reject) -> None:
        """Note why a request was refused. Its client gives up, unless it is a call of a program."""
        record, error = self._records[action.listener - 1], action.error
        record.names = ()
        record.error = f"{type(error).__name__}: {error}"
        record.refused_for = (
            error.decision.cause.value if isinstance(error, Refused) else type(error).__name__
        )
        if record.asked.turn is not None and isinstance(error, Refused):
            self._over(action.listener - 1, error.retry_after_s)

    def finished(self, action: RequestEnded) -> None:
        """Keep the outcome of a request."""
        _, request_id, _ = action.request_key.split("/")
        record = self._records[int(request_id)]
        record.ended, record.names = action, ()
        if record.asked.turn is not None and set(action.outcome.reasons) <= _ENDS:
            self._over(int(request_id), None)

    # What workers ask and say

    def describe(self, sequence: SimSequence) -> None:
        """Give a sequence what no command says: how long its output is, and what of its prompt is shared."""
        record = self._record_of(sequence)
        sequence.output_tokens = record.asked.output_tokens
        sequence.block_names = record.names

    def ended(self, sequence: SimSequence) -> None:
        """Take in the gaps of a sequence that is over on its worker."""
        self._record_of(sequence).gaps.extend(sequence.gaps)

    def _record_of(self, sequence: SimSequence) -> _Record:
        return self._records[int(sequence.spec.fence.request_id)]

    def results(self) -> tuple[RequestResult, ...]:
        """Return what became of each request."""
        return tuple(map(_result, self._records, self._starts))


def _result(record: _Record, start_s: float) -> RequestResult:
    accepted, ended = record.accepted, record.ended
    promised_s = accepted.promise.predicted_ttft_ms / 1000 if accepted else None
    at_risk = accepted.promise.at_risk if accepted else False
    if ended is None:
        end = End.REFUSED if record.error else End.UNFINISHED
        return RequestResult(
            record.asked, end, promised_ttft_s=promised_s, at_risk=at_risk, error=record.error,
            start_s=start_s, refused_for=record.refused_for,
        )  # fmt: skip
    outcome = ended.outcome
    marks = outcome.marks
    gaps = np.concatenate(record.gaps) if record.gaps else None
    return RequestResult(
        asked=record.asked,
        start_s=start_s,
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
