"""Expect the rest of a program after a call, which says when the call is due.

A program is several calls of a tenant, one after another, with one deadline for all of them. Between two
calls are tools, or a person who thinks. Each call says how much time the program has left. What comes after
the call is expected by what was seen of the tenant's programs:

    calls left after the k-th    Σ over j ≥ k of p(k) · ... · p(j), where p(j) is the share of programs that
                                 went on after their j-th call
    time of each of them         mean think time + mean time from dispatch to end

    first token due = deadline - calls left · time of each - mean time of an output

What is left over is the slack of the program, and this call may spend all of it. So of two programs, the one
with less slack goes first (`goal_of`). Once a call has begun it keeps a quick pace (`PACE`).

All of it is a guess of one router. What that router has not seen counts as nothing: the first call of an
unknown tenant is due as if it were its program's only one. A program that is forgotten, or that goes on at
another router, counts as a new one. Deadlines are not guessed, since each call states its own.

A program has ended once it is quiet for `QUIET` times as long as a call and the thinking before it take. If
its deadline passes earlier, it may have ended or have been given up: nothing is learnt from its end. A call
of this module takes a time that depends on `MAX_CALLS` alone.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

from scheduling.request import MAX_SLO_MS, Program, Slo
from scheduling.value import value

MAX_TENANTS = 64
"""Tenants remembered; the one whose last call ended first is forgotten."""
MAX_PROGRAMS = 256
"""Programs of a tenant that are remembered while they go on."""
MAX_CALLS = 16
"""Calls that are told apart by their number; later ones count as one."""
SPAN = 32
"""A mean is over about so many of the latest samples."""
QUIET = 6.0
PACE = 2.5
"""The gap between tokens to aim at, in decode steps of one sequence alone, where a call states none.

For a program only the end counts. So the fleet computes few calls at a time and soon, and lets the others
wait in the order of their slack, in place of computing all at once and slowly. A slower pace carries more
sequences, but of programs of agents (`sim/workloads/agents.py`) on an H200's costs fewer were in time: at
1.5 times the load that the fleet carries 0.78 with this pace, 0.67 with 4 steps and 0.57 with 1.8.
"""
LONGEST = 0.95
"""The largest share of programs that is taken to go on after a late call, so that sums stay finite."""


@value
class Rest:
    """The time that a program will probably take after a call's first token, in seconds."""

    output_s: float = 0.0
    """For the rest of this call's output."""
    later_s: float = 0.0
    """For all later calls, and the time before each of them."""


NOTHING = Rest()


def goal_of(slo: Slo, program: Program, rest: Rest, lone_step_s: float) -> Slo:
    """Return the SLO by which a call is judged and ordered: its own, and what its program implies.

    A stated latency is never loosened. A call that states none is not refused for its program's sake: it is
    at risk instead. `lone_step_s` is a decode step of this call alone; 0 if it is not known.
    """
    left_ms = program.deadline_ms - round(1000 * (rest.output_s + rest.later_s))
    ttft_ms = min(max(1, left_ms), MAX_SLO_MS if slo.ttft_ms is None else slo.ttft_ms)
    tpot_ms = slo.tpot_ms
    if slo.pace_ms is None and lone_step_s > 0:
        tpot_ms = max(1, round(1000 * PACE * lone_step_s))
    at_risk = slo.allow_at_risk or not slo.is_stated
    return replace(slo, ttft_ms=ttft_ms, tpot_ms=tpot_ms, allow_at_risk=at_risk)


@dataclass(slots=True)
class _Mean:
    """The mean of all samples, and of the latest ones once there are many."""

    value: float = 0.0
    count: int = 0

    def add(self, sample: float) -> None:
        self.count = min(self.count + 1, SPAN)
        self.value += (sample - self.value) / self.count


@value
class _Open:
    """A program that may go on, as its last call left it. Times are seconds on the caller's clock."""

    num_calls: int
    ended_at: float
    deadline_at: float


@dataclass(slots=True)
class _Tenant:
    """The programs of one tenant: their means, and those that may go on."""

    think: _Mean = field(default_factory=_Mean)
    run: _Mean = field(default_factory=_Mean)
    output: _Mean = field(default_factory=_Mean)
    goes_on: list[_Mean] = field(default_factory=lambda: [_Mean() for _ in range(MAX_CALLS)])
    """The share of programs that went on after each of their calls."""
    open: OrderedDict[str, _Open] = field(default_factory=OrderedDict)
    """By id; the one whose last call ended first comes first."""

    def calls_left(self, num_calls: int) -> float:
        """Return how many calls will probably follow the call of this number."""
        *early, last = self.goes_on
        share = min(LONGEST, last.value)
        left = share / (1 - share)
        for mean in reversed(early[num_calls - 1 :]):
            left = mean.value * (1 + left)
        return left

    def went_on(self, num_calls: int, *, ended: bool) -> None:
        """Learn whether a program ended with the call of this number."""
        self.goes_on[min(num_calls, MAX_CALLS) - 1].add(0.0 if ended else 1.0)

    def close(self, now: float) -> None:
        """Forget the program that has been quiet the longest, if it is over."""
        program_id, oldest = next(iter(self.open.items()))
        quiet_until = oldest.ended_at + QUIET * (self.think.value + self.run.value)
        if self.think.count and quiet_until < min(now, oldest.deadline_at):
            self.went_on(oldest.num_calls, ended=True)
        elif oldest.deadline_at > now and len(self.open) <= MAX_PROGRAMS:
            return
        del self.open[program_id]


class Programs:
    """The programs that one router has seen. Only calls that ended by themselves count."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()

    def rest(self, tenant: str, program_id: str) -> Rest:
        """Return what comes after the first token of a program's next call."""
        known = self._tenants.get(tenant)
        if known is None:
            return NOTHING
        program = known.open.get(program_id)
        left = known.calls_left(1 if program is None else program.num_calls + 1)
        return Rest(known.output.value, left * (known.think.value + known.run.value))

    def call_ended(
        self, tenant: str, program: Program, *, received_at: float, dispatched_at: float, first_at: float,
        now: float,
    ) -> None:  # fmt: skip
        """Learn from a call that has ended now."""
        known = self._tenants.setdefault(tenant, _Tenant())
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)
        known.run.add(now - dispatched_at)
        known.output.add(now - first_at)
        num_calls, before = 1, known.open.pop(program.id, None)
        if before is not None:
            num_calls = before.num_calls + 1
            known.went_on(before.num_calls, ended=False)
            if received_at >= before.ended_at:
                known.think.add(received_at - before.ended_at)
        known.open[program.id] = _Open(num_calls, now, received_at + program.deadline_ms / 1000)
        # Two for each that comes: however many have become quiet at once, all are looked at in the end.
        known.close(now)
        if known.open:
            known.close(now)
