"""A batch's totals are those of its rows."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.lateness import HOPELESS_GAPS
from scheduling.request import Fence, SamplingParams, SequenceSpec, StopRules
from sim.workers.batch import Batch
from sim.workers.sequence import Goal, Sequence

BLOCK = 8


def sequence(handle: int, prompt: int, output: int, tpot_ms: int | None = None) -> Sequence:
    spec = SequenceSpec(
        handle=handle,
        fence=Fence("", str(handle), 0, 1, 0, "", ""),
        prompt_token_ids=range(prompt),
        output_token_ids=(),
        choices=(0,),
        sampling=SamplingParams(),
        stop=StopRules(output),
        tpot_ms=tpot_ms,
    )
    one = Sequence(0, spec, Goal.DECODE, output, 0.0, handle)
    one.add_token(0.0)
    return one


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(2, 40)), min_size=1, max_size=6),
    steps=st.integers(1, 39),
)
def test_blocks_grow_as_each_context_does(lengths: list[tuple[int, int]], steps: int) -> None:
    batch = Batch(BLOCK)
    for handle, (prompt, output) in enumerate(lengths):
        batch.join(sequence(handle, prompt, output), 0.0, 0.0)
    steps = min(steps, batch.steps_to_an_end())
    contexts = [row.context_tokens for row in batch.rows]
    grown = sum(-(-(context + steps) // BLOCK) - -(-context // BLOCK) for context in contexts)
    assert batch.growth(steps) == grown
    batch.advance([0.1 * (i + 1) for i in range(steps)])
    assert batch.context_tokens == sum(contexts) + steps * len(contexts)
    ended = batch.take_ended()
    assert {end.handle for end in ended} == {
        i for i, (_, output) in enumerate(lengths) if output - 1 == steps
    }
    assert all(sum(len(gaps) for gaps in end.gaps) == end.output_tokens - 1 for end in ended)


@given(
    rows=st.lists(st.sampled_from([None, 50, 100, 300]), min_size=1, max_size=5),
    durations=st.lists(st.floats(0.01, 0.5), min_size=1, max_size=12),
)
def test_slack_is_that_of_the_earliest_row_with_hope(rows: list[int | None], durations: list[float]) -> None:
    at_once, singly = Batch(BLOCK), Batch(BLOCK)
    for handle, tpot_ms in enumerate(rows):
        at_once.join(sequence(handle, 5, 100, tpot_ms), 0.0, 0.0)
        singly.join(sequence(handle, 5, 100, tpot_ms), 0.0, 0.0)
    now, times = 0.0, []
    due = {handle: tpot_ms / 1000 for handle, tpot_ms in enumerate(rows) if tpot_ms is not None}
    for duration in durations:
        now += duration
        times.append(now)
        singly.advance([now])
        for handle, at in due.items():
            tpot_s = (rows[handle] or 0) / 1000
            due[handle] = (now if now - at > HOPELESS_GAPS * tpot_s else at) + tpot_s
    at_once.advance(times)
    together, apart = at_once.load(now), singly.load(now)
    assert (together.num_seqs, together.context_tokens) == (apart.num_seqs, apart.context_tokens)
    expected = min((max(0.0, at - now) for at in due.values()), default=math.inf)
    assert together.slack_s == pytest.approx(expected)
    assert apart.slack_s == pytest.approx(expected)
