"""Steps that compute nothing: how long they last, and what their tokens depend on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.kv_pool import KVPool
from engine.step_batch import StepBatch
from scheduling.cost_model import CostModel, StepShape
from worker.timed_runner import NEVER, TimedRunner, layout, logits_table, shape_of

BLOCK = 4
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


def batch_of(*sequences: tuple[Sequence[int], int, Sequence[int]]) -> StepBatch:
    """Of (tokens of the step, context before them, block table); the last token of each wants logits."""
    token_ids = [token for tokens, _, _ in sequences for token in tokens]
    positions = [before + place for tokens, before, _ in sequences for place in range(len(tokens))]
    slots = [
        table[(before + place) // BLOCK] * BLOCK + (before + place) % BLOCK
        for tokens, before, table in sequences
        for place in range(len(tokens))
    ]
    ends = np.cumsum([len(tokens) for tokens, _, _ in sequences])
    width = max(len(table) for _, _, table in sequences)
    tables = [[*table, *[0] * (width - len(table))] for _, _, table in sequences]
    lengths = [before + len(tokens) for tokens, before, _ in sequences]
    return StepBatch(
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slots),
        block_tables=torch.tensor(tables, dtype=torch.int32),
        context_lens=torch.tensor(lengths, dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, *ends], dtype=torch.int32),
        logit_rows=torch.tensor(ends - 1),
        max_query_len=max(len(tokens) for tokens, _, _ in sequences),
        max_context_len=max(lengths),
    )


def runner_of(clock: Clock | None = None) -> TimedRunner:
    clock = clock or Clock()
    table = logits_table(VOCAB, (3,))
    return TimedRunner(KVPool(layout(BLOCK), 16), COST, table, clock=clock, sleep=clock.sleep)


def generate(
    runner: TimedRunner, prompt: list[int], table: Sequence[int], chunk: int, count: int
) -> list[int]:
    """Greedily, the prompt in pieces of `chunk`."""
    logits = torch.empty(0)
    for begin in range(0, len(prompt), chunk):
        logits = runner.forward(batch_of((prompt[begin : begin + chunk], begin, table)))
    tokens = [int(logits[0].argmax())]
    while len(tokens) < count:
        before = len(prompt) + len(tokens) - 1
        tokens.append(int(runner.forward(batch_of(([tokens[-1]], before, table)))[0].argmax()))
    return tokens


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


def test_tokens_depend_neither_on_blocks_nor_on_chunks_nor_on_neighbours() -> None:
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
