"""The step loop on a GPU, one step behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.core.admission import EngineLimits
from engine.core.commands import Command, Decode
from engine.core.memory.block_manager import BlockManager
from engine.core.report import StepReport
from engine.execution.flight import StepMark
from engine.execution.model_runner import ModelRunner
from engine.execution.step_loop import StepLoop
from engine.kv.kv_pool import KVPool
from engine.model.model import load_model
from scheduling.policies.chunked import CHUNKED
from scheduling.request import StopRules
from tests.engine.loop_driver import UNKNOWN_COST, spec
from tests.engine.no_waiting import no_waiting
from tests.model_zoo import build

SIZE, NUM_BLOCKS = 16, 64


def make_loop(directory: Path, *, overlaps: bool | None) -> StepLoop:
    model = load_model(directory, torch.float32, torch.device("cuda"))
    pool = KVPool(model.block_layout(SIZE), NUM_BLOCKS, model.device)
    return StepLoop(
        ModelRunner(model, pool),
        pool.tensor,
        BlockManager(NUM_BLOCKS, SIZE),
        limits=EngineLimits(model.facts.vocab_size, model.facts.max_context, 16, 24, ()),
        fingerprint="model",
        detokenizer=None,
        policy=CHUNKED,
        cost=UNKNOWN_COST,
        overlaps=overlaps,
    )


def requests() -> list[Command]:
    """Lengths that are known ahead, so that both ways compute the same rows together."""
    prompts = [[5], list(range(3, 40)), [7, 9] * 9]
    return [
        Decode(spec(handle, prompt, stop=StopRules(20 + handle, ignore_eos=True), choices=(0, 1)))
        for handle, prompt in enumerate(prompts)
    ]


@pytest.mark.gpu
def test_a_loop_that_does_not_wait_says_the_same_and_times_its_steps(tmp_path: Path) -> None:
    directory = build("llama", tmp_path / "llama")
    told = []
    for overlaps in (None, False):
        loop, reports = make_loop(directory, overlaps=overlaps), list[StepReport]()
        wait_s = loop.turn(requests(), reports.append)
        while wait_s == 0.0:
            wait_s = loop.turn([], reports.append)
        loop.check_integrity()
        assert all(report.step_seconds > 0 for report in reports)
        tokens = [report.tokens for report in reports]
        told.append(
            [list(zip(token.handles, token.choices, token.token_ids, strict=True)) for token in tokens]
        )
    assert told[0] == told[1]


@pytest.mark.gpu
def test_no_turn_waits_for_the_step_that_it_launches(tmp_path: Path) -> None:
    loop = make_loop(build("llama", tmp_path / "llama"), overlaps=None)
    reports: list[StepReport] = []
    loop.turn(requests(), reports.append)
    for _ in range(4):
        loop.turn([], reports.append)
    with no_waiting():
        for _ in range(10):
            loop.turn([], reports.append)
    assert len(reports) == 14


@pytest.mark.gpu
def test_a_mark_times_its_own_step() -> None:
    factor = torch.randn(2048, 2048, device="cuda")
    times = []
    for count in (1, 100):
        mark = StepMark(torch.device("cuda"))
        for _ in range(count):
            factor @ factor
        mark.end()
        times.append(mark)
    for mark in times:
        mark.wait()
    short, long = (mark.seconds() for mark in times)
    assert 0 < short < long
