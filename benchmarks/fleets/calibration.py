"""Measure, from a router's recording, the overheads that a simulation of the same fleet needs."""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fleets.recorded import Window, decided_again, events
from benchmarks.fleets.travel import Travels, commands, usual_s
from router.core.model.actions import Action, AskGrants, Enqueue, SendDecode, SendPrefill, Settle
from router.core.model.events import (
    Arrived,
    Enqueued,
    Event,
    GrantsAnswered,
    SettleAnswered,
    StepReported,
    WorkerFacts,
    WorkerJoined,
    WorkerLoad,
)
from router.replay.replay import Decided
from scheduling.cost.profiles import Profile
from scheduling.cost_model import CostModel
from sim.delays import KINDS, RecordedDelay
from sim.spec import Overheads


@dataclass(slots=True)
class _Seen:
    """Times between events in seconds; `loads` has each worker's last report."""

    delays: dict[str, list[RecordedDelay]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    travel: list[float] = field(default_factory=list)
    asked: dict[tuple[str, str], deque[float]] = field(default_factory=lambda: defaultdict(deque))
    """When calls to the store began that are not yet answered, by kind and key."""
    sent: dict[str, float] = field(default_factory=dict)
    travels: Travels = field(default_factory=Travels)
    loads: dict[str, WorkerLoad] = field(default_factory=dict)
    budgets: dict[str, int] = field(default_factory=dict)


def overheads(path: Path, windows: Sequence[Window] = (Window(),)) -> Overheads:
    """Return the time that messages take between the parts, over these windows; defaults without samples.

    These are medians, since tails are long on a busy host. A command and a report are measured together, when
    a prompt of one step finds its worker idle, and each gets half. The time between two steps is part of the
    steps (`recorded.TimedStep`).
    """
    return _overheads(_seen(path, windows))


def _overheads(history: _Seen) -> Overheads:
    default = Overheads()
    travel_s = _median(history.travel, default.command_s + default.report_s)
    return Overheads(
        receive_s=_median((each.lasted_s for each in history.delays["receive"]), default.receive_s),
        store_s=_median((each.lasted_s for each in history.delays["enqueue"]), default.store_s),
        command_s=travel_s / 2,
        report_s=travel_s / 2,
    )


def delays(path: Path, windows: Sequence[Window] = (Window(),)) -> dict[str, tuple[RecordedDelay, ...]]:
    """Return each delay that was recorded in these windows, by kind, on the recording's clock."""
    history = _seen(path, windows)
    travels = [each for each in history.travels.found if any(each.sent_at in window for window in windows)]
    history.delays["command"] += commands(travels, usual_s(travels), _overheads(history).report_s)
    return {kind: tuple(kind_delays) for kind, kind_delays in history.delays.items()}


def _seen(path: Path, windows: Sequence[Window]) -> _Seen:
    history = _Seen()
    for decided in decided_again(path):
        _take(history, decided, counts=any(decided.recorded.now in window for window in windows))
    return history


def _median(values: Iterable[float], default: float) -> float:
    numbers = list(values)
    return max(0.0, statistics.median(numbers)) if numbers else default


def _take(history: _Seen, decided: Decided, *, counts: bool) -> None:
    now, event = decided.recorded.now, decided.recorded.event
    match event:
        case Arrived() if counts:
            history.delays["receive"].append(
                RecordedDelay(event.request.received_at, now - event.request.received_at)
            )
        case WorkerJoined(facts, load):
            history.budgets[facts.key] = facts.token_budget
            history.loads[facts.key] = load
        case StepReported():
            _take_step(history, now, event, counts=counts)
        case _:
            _take_answer(history, now, event, counts=counts)
    for action in decided.actions:
        match action:
            case SendPrefill(key, spec) | SendDecode(key, spec):
                history.travels.send(key, now)
                if key in history.sent or _is_busy(history, key):
                    history.sent.pop(key, None)
                elif len(spec.prompt_token_ids) <= history.budgets.get(key, 0):
                    history.sent[key] = now
            case _:
                _take_call(history, now, action)


def _take_call(history: _Seen, now: float, action: Action) -> None:
    match action:
        case Enqueue(entry):
            history.asked["enqueue", entry.request_key].append(now)
        case AskGrants(worker):
            history.asked["grant", worker.key].append(now)
        case Settle(key):
            history.asked["settle", key].append(now)


def _take_answer(history: _Seen, now: float, event: Event, *, counts: bool) -> None:
    match event:
        case Enqueued(key):
            kind = "enqueue"
        case GrantsAnswered(key):
            kind = "grant"
        case SettleAnswered(key):
            kind = "settle"
        case _:
            return
    call_times = history.asked[kind, key]
    if call_times:
        asked_at = call_times.popleft()
        if counts:
            history.delays[kind].append(RecordedDelay(asked_at, now - asked_at))


def _is_busy(history: _Seen, key: str) -> bool:
    load = history.loads[key]
    return load.running > 0 or load.waiting > 0


def _take_step(history: _Seen, now: float, event: StepReported, *, counts: bool) -> None:
    key = event.worker_key
    history.travels.take(event, now, is_idle=not _is_busy(history, key))
    if event.step_s > 0 and counts and key in history.sent:
        history.travel.append(now - history.sent.pop(key) - event.step_s)
    history.loads[key] = event.load


def profile(facts: WorkerFacts, cost: CostModel, max_context: int) -> Profile:
    """Return the profile of a worker as it announced itself, with these costs."""
    return Profile(
        name="recorded",
        model_name="recorded",
        block_size=facts.block_size,
        # Only hand-overs and swaps count bytes, and they take little time on one host.
        kv_bytes_per_token=1,
        num_blocks=facts.num_blocks,
        max_num_seqs=facts.max_num_seqs,
        token_budget=facts.token_budget,
        max_context=max_context,
        cost=cost,
        handoff_bytes_per_s=1e9,
        swap_bytes_per_s=1e9,
        host="recorded",
    )


def worker_facts(path: Path) -> dict[str, WorkerFacts]:
    """Return each worker as it joined, by worker id."""
    return {
        event.facts.worker_id: event.facts for _, event in events(path) if isinstance(event, WorkerJoined)
    }
