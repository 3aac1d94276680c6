"""Steps that compute nothing: how long they last, and what their tokens depend on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.kv.kv_pool import KVPool
from scheduling.cost_model import CostModel, StepShape
from tests.worker.timed.timed_steps import BLOCK, batch_of, generate
from worker.timed.timed_runner import NEVER, TimedRunner, layout, logits_table, shape_of

COST = CostModel((0.010, 0.001, 0.0001, 0.00001, 0.000001, 0.0000001), 8.0)
VOCAB = 50


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def runner_of(clock: Clock | None = None) -> TimedRunner:
    clock = clock or Clock()
    table = logits_table(VOCAB, (3,))
    return TimedRunner(KVPool(layout(BLOCK), 16), COST, table, clock=clock, sleep=clock.sleep)


def test_a_step_has_the_shape_of_its_decodes_and_chunks() -> None:
    batch = batch_of(([5], 6, [0, 1]), ([7], 2, [2]), ([1, 2, 3], 4, [3, 4]))
    assert shape_of(batch) == StepShape.of(2, 7 + 3, [(4, 3)])


def test_a_step_lasts_what_its_shape_costs() -> None:
    clock = Clock()
    runner = runner_of(clock)
    batch = batch_of(([5], 6, [0, 1]), ([1, 2, 3], 4, [3, 4]))
    runner.forward(batch)
    assert clock.now - 100 == pytest.approx(COST.predict(shape_of(batch)))


def test_the_hosts_part_of_a_step_is_hidden_behind_it() -> None:
    clock = Clock()
    runner = runner_of(clock)
    batch = batch_of(([5], 6, [0, 1]))
    cost = COST.predict(shape_of(batch))
    for _ in range(10):
        runner.forward(batch)
        clock.now += cost / 3
    runner.forward(batch)
    assert clock.now - 100 == pytest.approx(11 * cost)


def test_a_host_that_stood_still_catches_up_with_one_step_only() -> None:
    clock = Clock()
    runner = runner_of(clock)
    batch = batch_of(([5], 6, [0, 1]))
    cost = COST.predict(shape_of(batch))
    runner.forward(batch)
    clock.now += 50 * cost
    clock.slept.clear()
    runner.forward(batch)
    runner.forward(batch)
    assert clock.slept == [pytest.approx(cost)]


def test_a_step_after_a_wait_begins_when_the_wait_ended() -> None:
    clock = Clock()
    runner = runner_of(clock)
    batch = batch_of(([5], 6, [0, 1]))
    clock.now += 5
    runner.woke()
    began = clock.now
    runner.forward(batch)
    assert clock.now - began == pytest.approx(COST.predict(shape_of(batch)))


def test_tokens_do_not_depend_on_blocks_chunks_or_neighbours() -> None:
    prompt = [9, 8, 7, 6, 5, 4, 3, 2, 1]
    alone = generate(runner_of(), prompt, [0, 1, 2, 3, 4, 5], 9, 12)
    assert generate(runner_of(), prompt, [7, 3, 9, 1, 12, 2], 2, 12) == alone
    runner = runner_of()
    for begin in range(0, 8, 4):
        runner.forward(batch_of((prompt[begin : begin + 4], begin, [4, 5, 6]), ([2] * 4, begin, [9, 10, 11])))
    logits = runner.forward(batch_of(([2] * 2, 8, [9, 10, 11]), (prompt[8:], 8, [4, 5, 6])))
    assert int(logits[1].argmax()) == alone[0]
    assert len(set(alone)) > 6


def test_tokens_change_when_a_context_is_not_its_own() -> None:
    prompt = [9, 8, 7, 6, 5, 4, 3, 2, 1]
    runner = runner_of()
    own = generate(runner, prompt, [0, 1, 2, 3, 4, 5], 9, 12)
    other = runner_of()
    for begin in range(0, 8, 4):
        other.forward(batch_of((prompt[begin : begin + 4], begin, [0, 1])))
    other.forward(batch_of(([40, 41, 42, 43], 0, [0])))  # somebody else's tokens in the first block
    assert generate_on(other, prompt, own, [0, 1, 2, 3, 4, 5]) != own


def generate_on(runner: TimedRunner, prompt: list[int], given: list[int], table: Sequence[int]) -> list[int]:
    """The last prompt token and the given tokens, each judged by the context there is."""
    found = []
    for place, token in enumerate([prompt[-1], *given[:-1]]):
        logits = runner.forward(batch_of(([token], len(prompt) - 1 + place, table)))
        found.append(int(logits[0].argmax()))
    return found


def test_no_token_ends_a_sequence_by_itself() -> None:
    table = logits_table(VOCAB, (3, 5))
    assert (table[:, [3, 5]] == NEVER).all()
    assert (table.argmax(dim=1) != 3).all()
    assert (logits_table(VOCAB, (3, 5)) == table).all()
