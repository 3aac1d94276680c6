"""Several tokens of one choice in one report: for the simulator alone. No live router imports this module.

A simulated worker takes many equal decode steps at once (`engine.core.turns.simulated_runs`) and reports the
tokens of a choice as one run, when its load is due or the choice ends. A live worker reports each step. A
simulator that did so would be half as fast.

A run leaves a session as its tokens do when they come evenly, one report for each:
`tests/router/core/test_simulated_runs.py` compares the two. Nobody reads a simulated token, so a run is not
relayed.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core import finish, recover
from router.core.core import RouterCore
from router.core.deliver import choice_of, mark_decoding, take_changes, take_step
from router.core.model.actions import Action
from router.core.model.events import Event, StepReported
from router.core.model.fleet import Worker
from router.core.model.session import Choice
from router.core.model.state import RouterState
from scheduling.request import FinishReason
from scheduling.value import value


@value
class TokenRun:
    """Consecutive tokens of one choice, without its first token; the last of them may end the choice."""

    handle: int
    choice: int
    first_index: int
    token_ids: Sequence[int]
    finish: FinishReason = FinishReason.NONE
    max_gap_s: float | None = None
    """The longest gap before any of them; None when they came evenly."""


@value
class RunsReported:
    """A report with runs, which come after its other tokens."""

    report: StepReported
    runs: Sequence[TokenRun]


SimulatedEvent = Event | RunsReported


class SimulatedRouterCore(RouterCore):
    """A router core that also takes reports with runs."""

    def on(self, event: SimulatedEvent, now: float) -> list[Action]:
        """Take one event in, as `RouterCore.on` does."""
        if not isinstance(event, RunsReported):
            return super().on(event, now)
        self._begin(now)
        on_runs_reported(self.state, event)
        return self._end()


def on_runs_reported(state: RouterState, event: RunsReported) -> None:
    """Take in one report, as `on_step_reported` does, and its runs."""
    worker = state.fleet.workers.get(event.report.worker_key)
    if worker is None:
        return
    take_step(state, worker, event.report)
    for run in event.runs:
        _take_run(state, worker, run)
    take_changes(state, worker, event.report)


def _take_run(state: RouterState, worker: Worker, run: TokenRun) -> None:
    """Take in several tokens at once, without looking at each."""
    group = worker.groups.get(run.handle)
    if group is None:
        return
    choice = choice_of(group, run.choice)
    fault = _fault(worker, choice, run)
    if choice is None or fault:
        recover.fail_attempt(state, group, worker.key, f"protocol error: {fault}")
        return
    if not group.decode_reported:
        mark_decoding(group, state.now)
    session, count = group.session, len(run.token_ids)
    assert choice.last_at is not None, "a run follows a token"
    max_gap_s = (state.now - choice.last_at) / count if run.max_gap_s is None else run.max_gap_s
    session.max_gap_s = max(session.max_gap_s, max_gap_s)
    choice.last_at = state.now
    choice.extend(run.token_ids)
    choice.finish = run.finish
    worker.remaining_tokens -= count
    state.counters.relayed_tokens += count
    if run.finish and not group.open_choices:
        finish.end_group(state, group)


def _fault(worker: Worker, choice: Choice | None, run: TokenRun) -> str:
    """Return what is wrong with a run; empty when it goes on with its choice."""
    if choice is None:
        return "a run of a choice that is not of its group"
    assert choice.group is not None, "found through its group"
    if worker.key != choice.group.decode_key:
        return f"choice {run.choice} runs on a worker that only computes its prompt"
    if not run.token_ids:
        return f"choice {run.choice} is told a run of no tokens"
    if run.first_index != len(choice.token_ids) or choice.last_at is None:
        return f"choice {run.choice} goes on at index {run.first_index} with a run"
    return f"choice {run.choice} goes on after its end" if choice.finish else ""
