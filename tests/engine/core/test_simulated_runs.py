"""Several decode steps at once leave a batch as single steps do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.batch import Batch
from engine.core.due_times import HOPELESS_GAPS
from engine.core.sequence import Choice
from engine.core.turns.simulated_runs import advance, growth, num_steps_to_an_end
from tests.engine.core.batches import BLOCK, batch_of, sequence


def steps_one_by_one(batch: Batch, ends: list[float]) -> list[Choice]:
    """Take steps as a live worker does; return the choices that have left with any of them."""
    left = []
    for end in ends:
        last = batch.advance(batch.next_rows())
        for choice in last:
            batch.leave(choice)
        batch.due_times.advance(slice(batch.num_rows), end)
        left += last
    return left


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 60), st.integers(2, 40), st.sampled_from([None, 50, 300])),
        min_size=1,
        max_size=6,
    ),
    durations=st.lists(st.floats(0.01, 0.5), min_size=1, max_size=39),
)
def test_a_run_leaves_the_columns_of_its_steps(
    rows: list[tuple[int, int, int | None]], durations: list[float]
) -> None:
    at_once, singly = (
        batch_of([sequence(handle, *row) for handle, row in enumerate(rows)]) for _ in range(2)
    )
    ends = np.cumsum(durations)[: num_steps_to_an_end(at_once)]
    left = [[choice.group.handle for choice in steps_one_by_one(singly, ends.tolist())]]
    left.append([choice.group.handle for choice in advance(at_once, ends)])
    assert left[0] == left[1]
    assert [choice.group.handle for choice in at_once.choices] == [c.group.handle for c in singly.choices]
    assert at_once.num_context_tokens == singly.num_context_tokens
    n = singly.num_rows
    assert at_once.positions[:n].tolist() == singly.positions[:n].tolist()
    assert at_once.num_outputs[:n].tolist() == singly.num_outputs[:n].tolist()
    for together, apart in zip(at_once.due_times.columns, singly.due_times.columns, strict=True):
        assert together[:n].tolist() == apart[:n].tolist()


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(2, 40)), min_size=1, max_size=6),
    steps=st.integers(1, 39),
)
def test_blocks_grow_as_each_context_does(lengths: list[tuple[int, int]], steps: int) -> None:
    batch = batch_of([sequence(handle, *length) for handle, length in enumerate(lengths)])
    steps = min(steps, num_steps_to_an_end(batch))
    contexts = [prompt + 1 for prompt, _ in lengths]
    # The newest token at position `context - 1` has its block already.
    grown = [(context - 1 + steps) // BLOCK - (context - 1) // BLOCK for context in contexts]
    assert growth(batch, steps, BLOCK).tolist() == grown
    last = advance(batch, np.arange(1.0, steps + 1))
    going = [length for handle, length in enumerate(lengths) if length[1] - 1 > steps]
    assert batch.num_context_tokens == sum(prompt + 1 + steps for prompt, _ in going)
    assert {choice.group.handle for choice in last} == {
        handle for handle, (_, output) in enumerate(lengths) if output - 1 == steps
    }


@given(
    paces=st.lists(st.sampled_from([None, 50, 100, 300]), min_size=1, max_size=5),
    durations=st.lists(st.floats(0.01, 0.5), min_size=1, max_size=12),
)
def test_slack_is_that_of_the_earliest_row_with_hope(paces: list[int | None], durations: list[float]) -> None:
    choices = [(handle, 5, 100, tpot_ms) for handle, tpot_ms in enumerate(paces)]
    at_once, singly = (batch_of([sequence(*choice) for choice in choices]) for _ in range(2))
    times = np.cumsum(durations)
    due = {handle: tpot_ms / 1000 for handle, tpot_ms in enumerate(paces) if tpot_ms is not None}
    for now in times.tolist():
        steps_one_by_one(singly, [now])
        for handle, at in due.items():
            tpot_s = (paces[handle] or 0) / 1000
            due[handle] = (now if now - at > HOPELESS_GAPS * tpot_s else at) + tpot_s
    advance(at_once, times)
    now = float(times[-1])
    together, apart = (batch.decode_load(now, batch.next_rows()) for batch in (at_once, singly))
    assert together == apart
    assert apart.slack_s == pytest.approx(min((max(0.0, at - now) for at in due.values()), default=math.inf))
