from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.calibration.grid import Step, grid
from engine.calibration.sweep import make_batch, overstatement, sweep, warm_up
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.attention.step_batch import StepBatch
from engine.model.model import load_model
from scheduling.cost.cost_fit import fit
from scheduling.cost_model import StepShape
from scheduling.policies.slack import SLACK
from scheduling.prediction import ARRIVAL_S
from scheduling.step import DecodeLoad, PrefillWork, StepView
from tests import model_zoo


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    # GPT-2's learned positions end at its longest context: a step past it would be an index error.
    directory = model_zoo.build("gpt2", tmp_path_factory.mktemp("gpt2"))
    model = load_model(directory, torch.float32, torch.device("cpu"))
    return ModelRunner(model, KVPool(model.block_layout(16), num_blocks=24))


def test_a_sweep_is_enough_for_a_fit(runner: ModelRunner) -> None:
    # However slow the machine is now, it has the time for all rounds.
    found = sweep(runner, max_num_seqs=16, token_budget=64, seconds=600.0, max_seconds=600.0)
    samples = found.samples
    assert found.is_whole
    assert all(seconds > 0 for _, seconds in samples)
    model = fit(samples)
    assert model is not None
    large, small = StepShape.of(16, 16 * 200, [(128, 64)]), StepShape.of(1, 10, [])
    assert model.predict(large) > model.predict(small) > 0


@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
def test_an_earlier_sweep_is_compared_with_what_small_steps_take_now(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, times: float
) -> None:
    clock = Clock()
    monkeypatch.setattr("engine.calibration.sweep.time.perf_counter", clock)
    monkeypatch.setattr(runner, "forward", clock.taking(runner.forward))
    samples = sweep(runner, max_num_seqs=4, token_budget=16, max_seconds=1e6).samples
    earlier = [(shape, seconds * times * disturbed) for shape, seconds in samples for disturbed in (9.0, 1.0)]
    found = overstatement(earlier, runner, max_num_seqs=4, token_budget=16)
    assert found == pytest.approx(times)


LAUNCH_S = 0.016


def replaying_gpu_s(shape: StepShape) -> float:
    """Return the seconds of a step of an 8B model on an H200, as measured: decodes alone are replayed, and
    the host launches a step with a chunk in LAUNCH_S.
    """
    device_s = max(0.0045, shape.num_tokens * 2e-5) + shape.decode_context * 3.3e-8
    device_s += shape.chunk_attention * 1.7e-9
    return max(device_s, LAUNCH_S) if shape.has_chunk else device_s


def test_chunks_are_as_long_as_a_device_can_that_waits_for_launches() -> None:
    steps = grid(512, 8192, 32768, has_floor=True)
    cost = fit([(step.shape, replaying_gpu_s(step.shape)) for step in steps], floor_s=LAUNCH_S)
    assert cost is not None
    assert cost.ratio_q95 < 1.3
    waiting = [PrefillWork(number, 2048) for number in range(8)]
    promised = DecodeLoad(32, 32_000, slack_s=0.03, gap_limit_s=0.03)
    for decodes, limit_s, least in ((DecodeLoad(), ARRIVAL_S, 2000), (promised, 0.03, 900)):
        plan = SLACK.plan(StepView(decodes, waiting, 8192, 512, cost))
        assert sum(chunk.num_tokens for chunk in plan.chunks) >= least
        chunks = [(0, chunk.num_tokens) for chunk in plan.chunks]
        shape = StepShape.of(decodes.num_seqs, decodes.context_tokens, chunks)
        assert replaying_gpu_s(shape) <= 1.05 * limit_s


def test_without_time_there_is_still_one_round(runner: ModelRunner) -> None:
    swept = sweep(runner, max_num_seqs=4, token_budget=16, seconds=0.0)
    assert swept.is_whole
    assert {shape for shape, _ in swept.samples} == {step.shape for step in grid(4, 16, 256)}


def test_a_slow_machine_measures_the_small_steps_and_stops(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps take a second for each token, by a clock that they move."""
    clock = Clock()
    monkeypatch.setattr("engine.calibration.sweep.time.perf_counter", clock)
    monkeypatch.setattr(runner, "forward", clock.taking(runner.forward))
    told: list[tuple[int, int]] = []
    steps = grid(64, 256, 256)
    swept = sweep(
        runner,
        max_num_seqs=64,
        token_budget=256,
        max_seconds=8.0,
        on_progress=lambda _phase, done, total: told.append((done, total)),
    )
    assert not swept.is_whole
    assert {shape.num_tokens for shape, _ in swept.samples} == {1}
    assert clock.now_s <= 8.0
    assert told == [(done, len(steps)) for done in range(len(told))]
    clock.now_s = 0.0
    warm_up(runner, max_num_seqs=64, token_budget=256, max_seconds=8.0)
    assert clock.now_s == 2.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def taking(self, forward: Callable[[StepBatch], Tensor]) -> Callable[[StepBatch], Tensor]:
        def run(batch: StepBatch) -> Tensor:
            self.now_s += len(batch.token_ids)
            return forward(batch)

        return run


def test_a_warm_up_stays_within_the_model_s_longest_context(runner: ModelRunner) -> None:
    warm_up(runner, max_num_seqs=64, token_budget=1024)


@pytest.mark.parametrize("step", grid(16, 64, 256), ids=str)
def test_a_step_s_batch_is_what_its_shape_says(step: Step, runner: ModelRunner) -> None:
    batch = make_batch(runner, step)
    query_lens = batch.cu_seqlens_q.diff()
    contexts = batch.context_lens - query_lens
    is_decode = torch.arange(len(query_lens)) < step.num_decodes
    chunks = zip(contexts[~is_decode].tolist(), query_lens[~is_decode].tolist(), strict=True)
    assert (query_lens[is_decode] == 1).all()
    assert step.shape == StepShape.of(step.num_decodes, int(batch.context_lens[is_decode].sum()), chunks)
    assert len(batch.token_ids) == step.shape.num_tokens
    assert int(batch.positions.max()) == batch.max_context_len - 1


@given(st.integers(1, 300), st.integers(1, 2048), st.integers(1, 8192))
def test_the_grid_stays_within_the_worker_s_limits(seqs: int, budget: int, longest: int) -> None:
    steps = grid(seqs, budget, longest)
    assert steps
    for step in steps:
        before, tokens = step.chunk or (0, 0)
        assert step.num_decodes <= seqs
        assert tokens <= budget
        assert max(step.decode_context, before + tokens) <= longest


def test_no_two_costs_vary_together() -> None:
    """Or the fit could not tell a chunk's own attention from its context, or sequences from tokens."""
    sizes = [step.shape for step in grid(64, 256, 4096)]
    columns = np.array(
        [
            [1, s.num_seqs, max(0, s.num_tokens - 16), s.decode_context, s.chunk_attention, s.chunk_context]
            for s in sizes
        ]
    )
    assert np.linalg.matrix_rank(columns / np.linalg.norm(columns, axis=0), tol=1e-2) == 6
