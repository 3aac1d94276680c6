"""Replayed decode steps give what they give when they are run, whatever the last one left behind."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.errors import ModelRefused
from engine.execution.decode_graphs import CudaGraphs, Run, batch_sizes
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.attention.step_batch import StepBatch
from engine.model.model import Model, load_model
from tests import model_zoo
from tests.engine.no_waiting import no_waiting
from tests.engine.ragged import NO_BLOCK, Piece, make_batch, moved, shuffled_tables

BLOCK_SIZE = 4
MAX_NUM_SEQS = 20
SIZES = [1, 2, 4, 8, 16, 20]


class Replayer:
    """Stands for a recording: does the work again over the same tensors, and answers in the same memory."""

    def __init__(self) -> None:
        self.recorded: list[int] = []
        self.replayed: list[int] = []

    def __call__(self, run: Run) -> Run:
        output = run().clone()
        self.recorded.append(len(output))

        def replay() -> Tensor:
            self.replayed.append(len(output))
            return output.copy_(run())

        return replay


class Scene:
    """Sequences in the middle of their contexts, in two pools: one for each of two runners of one model."""

    def __init__(self, model: Model, lengths: Sequence[int]) -> None:
        self.lengths = lengths
        self.tables, num_blocks = shuffled_tables(lengths, BLOCK_SIZE, seed=4)
        self.runners = []
        for _ in range(2):
            pool = KVPool(model.block_layout(BLOCK_SIZE), num_blocks, model.device)
            pool.tensor.fill_(float("nan"))
            generator = torch.Generator().manual_seed(5)
            used = [block for table in self.tables for block in table]
            values = torch.randn((len(used), *pool.layout.shape), generator=generator, dtype=torch.float64)
            pool.tensor[used] = values.to(pool.tensor)
            runner = ModelRunner(model, pool)
            runner._rows = None  # as on a GPU; each op answers with its reference
            self.runners.append(runner)

    def decodes(self, count: int, seed: int) -> StepBatch:
        """A step of any `count` sequences, with any tokens."""
        rng = random.Random(seed)
        pieces = [
            Piece(self.lengths[place] - 1, [rng.randrange(model_zoo.VOCAB_SIZE)], self.tables[place])
            for place in rng.sample(range(len(self.lengths)), count)
        ]
        return moved(make_batch(pieces, BLOCK_SIZE), self.runners[0].model.device)

    def assert_same_pools(self, atol: float = 1e-9) -> None:
        ours, theirs = (runner.pool.tensor for runner in self.runners)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=atol, equal_nan=True)


def make_scene(directory: Path, lengths: Sequence[int], *, fused: bool = False) -> Scene:
    model = load_model(directory, torch.float64, torch.device("cpu"), fused=fused)
    assert model.is_fused == fused, model.fusion
    return Scene(model, lengths)


def poison(runner: ModelRunner) -> None:
    """Fill buffers as if a full batch had left values that must not be used."""
    graphs = runner._graphs
    assert graphs is not None
    inputs = graphs._inputs
    for column in (inputs.token_ids, inputs.positions, inputs.slot_mapping, inputs.context_lens):
        column.fill_(10**6)
    inputs.block_tables.fill_(NO_BLOCK)
    graphs._num_filled = MAX_NUM_SEQS


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_steps_around_every_size_equal_eager_ones(name: str, fused: bool, zoo: Callable[[str], Path]) -> None:
    scene = make_scene(zoo(name), [1 + 3 * place for place in range(MAX_NUM_SEQS)], fused=fused)
    eager, graphs = scene.runners
    replayer = Replayer()
    graphs.record_decodes(MAX_NUM_SEQS, replayer, lambda _done, _total: None)
    assert replayer.recorded == SIZES[::-1]
    scene.assert_same_pools()
    around = {size + by for size in SIZES for by in (-1, 0, 1)} & set(range(1, MAX_NUM_SEQS + 1))
    for step, count in enumerate([*sorted(around, reverse=True), MAX_NUM_SEQS, 3, 9, 1]):
        batch = scene.decodes(count, seed=count)
        if step < len(around):
            poison(graphs)
        want, got = eager.forward(batch), graphs.forward(batch)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-9)
        assert replayer.replayed.pop() == min(size for size in SIZES if size >= count)
        scene.assert_same_pools()


def test_what_is_not_decodes_alone_runs_as_it_is(zoo: Callable[[str], Path]) -> None:
    scene = make_scene(zoo("llama"), [9, 30, 6, 12])
    eager, graphs = scene.runners
    replayer = Replayer()
    graphs.record_decodes(2, replayer, lambda _done, _total: None)
    pieces = [
        Piece(length - 1, [7], table) for length, table in zip(scene.lengths, scene.tables, strict=True)
    ]
    chunk = Piece(4, [5, 6, 7], scene.tables[1])
    too_many = make_batch(pieces[:3], BLOCK_SIZE)
    mixed = make_batch([pieces[0], chunk], BLOCK_SIZE)
    one_by_one = make_batch(pieces[:2], BLOCK_SIZE)
    silent = replace(one_by_one, logit_rows=one_by_one.logit_rows[:1])
    for batch in (too_many, mixed, make_batch([chunk], BLOCK_SIZE), silent):
        torch.testing.assert_close(graphs.forward(batch), eager.forward(batch), rtol=0, atol=1e-9)
    assert replayer.replayed == []
    graphs.forward(one_by_one)
    assert replayer.replayed == [2]


def test_progress_is_told_for_every_size(zoo: Callable[[str], Path]) -> None:
    told: list[tuple[int, int]] = []
    _, graphs = make_scene(zoo("llama"), [3]).runners
    graphs.record_decodes(3, Replayer(), lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_a_model_that_cannot_be_recorded_is_refused_with_the_way_out(zoo: Callable[[str], Path]) -> None:
    def refuse(run: Run) -> Run:
        raise RuntimeError("operation not permitted when stream is capturing")

    _, graphs = make_scene(zoo("llama"), [3]).runners
    with pytest.raises(ModelRefused, match=r"capturing\); accepted: --no-cuda-graphs"):
        graphs.record_decodes(3, refuse, lambda _done, _total: None)


@given(st.integers(1, 1024))
def test_the_sizes_hold_every_batch_with_few_idle_rows(max_num_seqs: int) -> None:
    sizes = batch_sizes(max_num_seqs)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_num_seqs
    for below, size in zip([0, *sizes], sizes, strict=False):
        idle = size - (below + 1)
        assert idle <= 7 or (size <= 128 and idle <= 15) or (below >= 128 and idle <= 31)


def test_the_sizes_of_a_usual_worker() -> None:
    assert batch_sizes(200) == [1, 2, 4, 8, *range(16, 129, 16), 160, 192, 200]
    assert batch_sizes(1) == [1]


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("name", "dtype", "atol"),
    [("llama", torch.float32, 1e-3), ("gemma2", torch.float32, 1e-3), ("gpt_oss", torch.bfloat16, 0.5)],
)
def test_cuda_graphs_equal_eager_steps(
    name: str, dtype: torch.dtype, atol: float, fused: bool, zoo: Callable[[str], Path]
) -> None:
    """Compare up to rounding: products of other heights add up in another order."""
    model = load_model(zoo(name), dtype, torch.device("cuda"), fused=fused)
    scene = Scene(model, [1 + 12 * place for place in range(MAX_NUM_SEQS)])
    eager, graphs = scene.runners
    graphs.record_decodes(MAX_NUM_SEQS, CudaGraphs(model.device), lambda _done, _total: None)
    for count in [20, 1, 7, 16, 3, 17, 2, 20]:
        batch = scene.decodes(count, seed=count)
        want = eager.forward(batch)
        with no_waiting():
            got = graphs.forward(batch)
        torch.testing.assert_close(got, want, rtol=0, atol=atol)
        scene.assert_same_pools(atol)
