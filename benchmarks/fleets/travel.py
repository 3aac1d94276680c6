"""How long a router's commands take to reach the steps of a worker, as far as a recording shows it.

A recording has when a prompt was sent and when each step was reported, not when the worker received the
prompt. If it had none to compute, it received this one after the last step without a prompt began, and before
the first step with one did. A worker that did nothing began that step at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from router.core.model.events import StepReported
from sim.delays import RecordedDelay


@dataclass(slots=True)
class Travel:
    """A prompt's way to a worker and the report's way back, together between two bounds in seconds."""

    sent_at: float
    least_s: float
    most_s: float = 0.0


@dataclass(slots=True)
class Travels:
    """Watches commands and reports, and finds the travels of prompts that no other prompt obscures."""

    found: list[Travel] = field(default_factory=list)
    _on_their_way: dict[str, Travel | None] = field(default_factory=dict)
    """By worker that has a prompt to compute; None if that is not the first prompt it has."""

    def send(self, worker_key: str, now: float) -> None:
        """Note that a prompt is sent."""
        is_first = worker_key not in self._on_their_way
        self._on_their_way[worker_key] = Travel(now, 0.0) if is_first else None

    def take(self, step: StepReported, now: float, *, is_idle: bool) -> None:
        """Note a report, which came at `now`; `is_idle` says that the worker did nothing before this step."""
        key, shape = step.worker_key, step.shape
        if shape is None or key not in self._on_their_way:
            return
        travel = self._on_their_way[key]
        if shape.num_tokens == shape.num_decodes:
            if travel is not None:
                travel.least_s = max(travel.least_s, now - step.step_s - travel.sent_at)
            return
        if travel is not None:
            travel.most_s = now - step.step_s - travel.sent_at
            if is_idle:
                travel.least_s = travel.most_s
            if travel.least_s <= travel.most_s:
                self.found.append(travel)
        if step.load.pending_prefill_tokens:
            self._on_their_way[key] = None
        else:
            del self._on_their_way[key]


def usual_s(travels: Sequence[Travel]) -> float:
    """Return the least time that is within the bounds of the most travels; 0 without any."""
    ends = [(travel.least_s, -1) for travel in travels] + [(travel.most_s, 1) for travel in travels]
    usual, most, within = 0.0, 0, 0
    for at_s, change in sorted(ends):
        within -= change
        if within > most:
            usual, most = at_s, within
    return usual


def commands(travels: Iterable[Travel], usual_s: float, report_s: float) -> Iterator[RecordedDelay]:
    """Yield how long each command took: the usual time, or the bound that is closest to it."""
    for travel in travels:
        travel_s = min(max(usual_s, travel.least_s), travel.most_s)
        yield RecordedDelay(travel.sent_at, max(0.0, travel_s - report_s))
