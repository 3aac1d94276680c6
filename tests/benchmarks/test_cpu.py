"""A comparison of engines on a CPU: its tables, its floors, and engines that play a load."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.cpu.comparison import Comparison
from benchmarks.cpu.engines import process_engine
from benchmarks.cpu.engines.baton_engine import baton
from benchmarks.cpu.engines.loads import LOADS, ONE_DECODE, PREFILL, Load, Played, decodes, steps_of
from benchmarks.cpu.engines.process_engine import NotMeasured, Setting, openvino, transformers
from benchmarks.cpu.engines.serving import Clock
from benchmarks.cpu.floors import Limits, Need, need_of
from benchmarks.cpu.random_model import SHAPE, random_model
from benchmarks.cpu.shares import PARTS, Shares, Spent, engine_of, measure_shares
from benchmarks.cpu.tables import agreement, engines_table, floors_table, limits_table, shares_table
from benchmarks.gpu.sizes import TINY

LIMITS = Limits(read_bytes_per_s=20e9, flops={"float32": 100e9, "bfloat16": 400e9})
STEPS = Load("steps", 3, 16, output_tokens=TINY.model.max_context - 16, num_steps=4)
"""Outputs as long as they can be: the first is to last until the other prompts have come, on any machine."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(TINY.model, tmp_path_factory.mktemp("models"))


def compared(*engines: tuple[str, float, float]) -> Comparison:
    """Return a comparison of one seed, by each engine's seconds of a prefill and of a step."""
    found = Comparison([LIMITS])
    for name, prefill_s, step_s in engines:
        found.played[PREFILL][name] = [Played(prefill_s, 0.0, [7])]
        found.played[ONE_DECODE][name] = [Played(0.0, step_s, [len(name)])]
    return found


def row_of(table: str, name: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_ratios_are_speeds_whichever_way_a_figure_counts() -> None:
    table = engines_table(compared(("Baton", 2.0, 0.030), ("transformers", 4.0, 0.045)))
    missing = "not measured"
    assert row_of(table, PREFILL.name) == ["tokens/s", "1024", "512", missing, "2.00", missing]
    assert row_of(table, ONE_DECODE.name) == ["ms per step", "30.0", "45.0", missing, "1.50", missing]


def test_an_engine_that_ends_early_is_missing_everywhere() -> None:
    found = compared(("Baton", 2.0, 0.030), ("transformers", 4.0, 0.045))
    found.miss("transformers", NotMeasured("it ended"))
    assert all("transformers" not in engines for engines in found.played.values())
    assert found.notes == ["it ended."]
    assert agreement(found) == ""


def test_first_tokens_are_compared_with_those_of_the_fleet() -> None:
    found = compared(("Baton", 2.0, 0.030), ("transformers", 4.0, 0.045), ("OpenVINO GenAI", 1.0, 0.02))
    assert agreement(found) == "First tokens equal to Baton's: transformers 1 of 2, OpenVINO GenAI 1 of 2."


def test_each_engine_is_compared_with_the_floors() -> None:
    need = Need(layer_weights=100_000_000, read_weights=150_000_000)
    table = floors_table(compared(("Baton", 8.192, 0.045)), need, "float32")
    assert row_of(table, ONE_DECODE.name)[:2] == ["30.0", "1.50"]
    assert row_of(table, PREFILL.name)[:2] == ["4096.0", "2.00"]
    assert row_of(limits_table([LIMITS]), "memory, GB/s") == ["20.0"]


def test_only_weights_that_a_token_uses_are_counted(tiny: Path) -> None:
    need = need_of(tiny)
    assert need.read_weights == TINY.model.weights
    assert need.read_weights - need.layer_weights == TINY.model.hidden * TINY.model.vocab


def test_the_random_model_has_200_million_weights() -> None:
    assert SHAPE.weights + SHAPE.hidden * SHAPE.vocab == pytest.approx(200e6, rel=0.01)


def test_steps_count_once_every_sequence_has_begun() -> None:
    late = [5.0, 6.0, 7.0, 8.0]
    assert steps_of([[1.0, 2.0, 5.5, 6.5, 7.5], late], 2) == pytest.approx(1.0)
    assert steps_of([[1.0, 2.0, 5.5], late], 2) is None
    assert steps_of([[], late], 2) is None


def test_a_process_reports_its_last_steps() -> None:
    clock = Clock()
    clock.began, clock.at = 0.0, [9.0, 10.0, 12.0]
    assert clock.reply(2, [1])["step_s"] == pytest.approx(1.5)
    assert clock.reply(0, [1])["total_s"] == pytest.approx(12.0)


def test_no_prompt_is_sent_twice() -> None:
    prompts = [tuple(ids) for load in LOADS for seed in (1, 2) for ids in load.prompts(seed, 32000)]
    assert len(set(prompts)) == len(prompts)
    assert all(len(ids) > 16 for ids in prompts)
    assert decodes(8).prompts(1, 32000) == decodes(8).prompts(1, 32000)


def test_the_parts_of_a_step_add_up() -> None:
    before = Spent(now=1.0, forward=0.5, linear=0.25, attention=0.125)
    after = Spent(now=2.0, forward=1.25, linear=0.75, attention=0.25)
    assert after.since(before) == (0.5, 0.125, 0.125, 0.25)
    table = shares_table({"batch 1": [Shares((0.5, 0.125, 0.125, 0.25))]})
    assert row_of(table, "linear products") == ["50.0 %, 500000 µs"]


def test_an_engine_is_as_it_was_once_its_steps_were_timed(tiny: Path) -> None:
    engine = engine_of(tiny, "float32", token_budget=32)
    own = engine.runner.forward
    found = measure_shares(engine, STEPS, STEPS.prompts(1, TINY.model.vocab))
    assert len(found.parts_s) == len(PARTS)
    assert min(found.parts_s) > 0
    assert engine.runner.forward == own
    modules = engine.runner.model.module.modules()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def test_a_fleet_and_transformers_play_the_same_loads(tiny: Path) -> None:
    whole = Load("whole", 2, 16, output_tokens=3)

    async def play() -> list[list[Played]]:
        setting = Setting(tiny, "float32", 1, 32)
        async with baton(setting) as fleet, transformers(setting) as peer:
            return [
                [await arm.play(load, load.prompts(1, TINY.model.vocab)) for load in (STEPS, whole)]
                for arm in (fleet, peer)
            ]

    ours, theirs = asyncio.run(play())
    assert [played.first_tokens for played in ours] == [played.first_tokens for played in theirs]
    for steps, outputs in (ours, theirs):
        assert steps.step_s > 0
        assert outputs.total_s > 0


def test_a_process_that_ends_says_why(tmp_path: Path) -> None:
    async def start() -> None:
        async with transformers(Setting(tmp_path, "float32", 1, 32)):
            pass

    with pytest.raises(NotMeasured, match=r"the process of transformers ended: (?s:.*)config\.json"):
        asyncio.run(start())


def test_without_its_environment_openvino_is_not_measured(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_engine, "OPENVINO", tmp_path)

    async def start() -> None:
        async with openvino(Setting(tiny, "float32", 1, 32)):
            pass

    with pytest.raises(NotMeasured, match=r"make \.venv-openvino/\.ready"):
        asyncio.run(start())


@pytest.mark.parametrize(
    ("flags", "message"), [(["--part", "magic"], "accepted: engines"), (["--model"], "512 positions")]
)
def test_what_cannot_be_measured_is_refused(
    tiny: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [str(tiny)] if flags == ["--model"] else []
    assert main(["cpu", *flags, *values]) == 2
    assert message in capsys.readouterr().err
