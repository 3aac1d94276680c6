"""Several steps at once leave a batch as single steps do."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.batch import Batch
from engine.core.due_times import HOPELESS_GAPS, after_first_token
from engine.core.sequence import Choice, Goal, SequenceGroup
from model_output.text.output import OutputStream, output_rules
from scheduling.request import StopRules
from tests.engine.loop_driver import spec
from tests.engine.row_table import NoRows

BLOCK = 8


def sequence(handle: int, prompt: int, output: int, tpot_ms: int | None = None) -> Choice:
    """A choice that has had its first token at 0 s."""
    one = replace(spec(handle, [1] * prompt, stop=StopRules(output)), tpot_ms=tpot_ms)
    rules = output_rules(one.stop, (), prompt, 1000)
    group = SequenceGroup(handle, one, Goal.DECODE, rules, [], 0.0)
    choice = Choice(group, 0, OutputStream(rules, None))
    choice.output_token_ids.append(1)
    choice.due = after_first_token(tpot_ms, None, 0.0)
    return choice


def batch_of(choices: list[Choice], num_micro_batches: int = 1) -> Batch:
    batch = Batch(8, BLOCK, NoRows(), num_micro_batches)
    for choice in choices:
        batch.join(choice)
    return batch


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(2, 40)), min_size=1, max_size=6),
    steps=st.integers(1, 39),
)
def test_blocks_grow_as_each_context_does(lengths: list[tuple[int, int]], steps: int) -> None:
    batch = batch_of([sequence(handle, *length) for handle, length in enumerate(lengths)])
    steps = min(steps, batch.num_steps_to_an_end())
    contexts = [prompt + 1 for prompt, _ in lengths]
    # The newest token at position `context - 1` has its block already.
    grown = [(context - 1 + steps) // BLOCK - (context - 1) // BLOCK for context in contexts]
    assert batch.growth(steps).tolist() == grown
    last = batch.advance(batch.next_rows(), steps)
    assert batch.num_context_tokens == sum(contexts) + steps * len(contexts)
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
        singly.due_times.advance(slice(len(paces)), now)
        for handle, at in due.items():
            tpot_s = (paces[handle] or 0) / 1000
            due[handle] = (now if now - at > HOPELESS_GAPS * tpot_s else at) + tpot_s
    at_once.due_times.advance_steps(len(paces), times)
    now = float(times[-1])
    together, apart = (batch.decode_load(now, batch.next_rows()) for batch in (at_once, singly))
    assert together == apart
    assert apart.slack_s == pytest.approx(min((max(0.0, at - now) for at in due.values()), default=math.inf))


@given(num_rows=st.integers(1, 8), num_micro_batches=st.integers(2, 5))
def test_micro_batches_take_turns_with_all_rows(num_rows: int, num_micro_batches: int) -> None:
    choices = [sequence(handle, 5, 100) for handle in range(num_rows)]
    batch, served = batch_of(choices, num_micro_batches), Counter[int]()
    in_flight: list[list[int]] = []
    for _ in range(6 * num_micro_batches):
        rows = batch.next_rows()
        assert isinstance(rows, np.ndarray)
        assert len(rows) <= -(-num_rows // num_micro_batches)
        assert not set(rows.tolist()) & {row for flight in in_flight for row in flight}
        batch.mark_pending(rows)
        in_flight.append(rows.tolist())
        served.update(rows.tolist())
        if len(in_flight) == num_micro_batches:
            batch.mark_known(np.array(in_flight.pop(0), dtype=np.int64))
    counts = [served[row] for row in range(num_rows)]
    assert min(counts) >= 5
    assert max(counts) - min(counts) <= 1


def test_the_slack_of_a_micro_batch_is_that_of_all_rows() -> None:
    batch = batch_of([sequence(0, 5, 100, 50), sequence(1, 5, 100, 300)], num_micro_batches=2)
    load = batch.decode_load(0.01, np.array([1]))
    assert (load.num_seqs, load.context_tokens) == (1, 6)
    assert load.slack_s == pytest.approx(0.04)
    assert load.gap_limit_s == pytest.approx(0.05)
