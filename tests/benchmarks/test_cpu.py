"""A comparison of engines on a CPU: its tables, its floors, and engines that play a load."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.cpu.arms import FORMATS, Start
from benchmarks.cpu.comparison import Comparison
from benchmarks.cpu.engines import forms, peers
from benchmarks.cpu.engines.baton_engine import baton
from benchmarks.cpu.engines.gguf_process import interleaved
from benchmarks.cpu.engines.loads import (
    CHECKED,
    LOADS,
    ONE_DECODE,
    PREFILL,
    Load,
    Played,
    decodes,
    steps_of,
)
from benchmarks.cpu.engines.process_engine import NotMeasured, Setting
from benchmarks.cpu.engines.serving import Clock
from benchmarks.cpu.floors import Limits, Need, need_of
from benchmarks.cpu.random_model import SHAPE, SHAPES, WIDE, random_model
from benchmarks.cpu.shares import PARTS, Shares, Spent, engine_of, measure_shares
from benchmarks.cpu.tables import (
    FIRST_TOKENS,
    MULTIPLYING,
    READING,
    engines_table,
    limits_table,
    shares_table,
)
from benchmarks.gpu.sizes import TINY

LIMITS = Limits(read_bytes_per_s=20e9, flops={"float32": 100e9, "bfloat16": 400e9})
STEPS = Load("steps", 3, 16, output_tokens=TINY.model.max_context - 16, num_steps=4)
"""Outputs as long as they can be: the first is to last until the other prompts have come, on any machine."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(TINY.model, tmp_path_factory.mktemp("models"))


NEED = Need(layer_weights=100_000_000, read_weights=150_000_000)
MISSING = "not measured"


def compared(form: str, **engines: tuple[float, float]) -> Comparison:
    """Return a comparison of one seed, by each arm's seconds of a prefill and of a step.

    Arms are called by their place in the format. Of two first tokens, one is that of float32.
    """
    arms = FORMATS[form]
    found = Comparison(arms, [LIMITS])
    for place, (prefill_s, step_s) in engines.items():
        arm = arms[int(place.removeprefix("arm"))]
        found.played[PREFILL][arm.name] = [Played(prefill_s, 0.0, [7])]
        found.played[ONE_DECODE][arm.name] = [Played(0.0, step_s, [7])]
        found.played[CHECKED][arm.name] = [Played(1.0, 0.0, [7, 8])]
        found.exact[arm.exact] = [Played(1.0, 0.0, [7, 9])]
    return found


def row_of(table: str, name: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_baton_is_compared_with_the_fastest_peer_of_each_load() -> None:
    found = compared("float", arm0=(2.0, 0.030), arm1=(1.6, 0.015), arm2=(4.0, 0.045), arm3=(1.0, 0.06))
    table = engines_table(found, NEED, "float32")
    figures = ["1024", "1280", "512", "2048", MISSING]
    assert row_of(table, PREFILL.name) == ["tokens/s", *figures, "OpenVINO", "0.50", "0.62"]
    figures = ["30.0", "15.0", "45.0", "60.0", MISSING]
    assert row_of(table, ONE_DECODE.name) == ["ms per step", *figures, "transformers", "1.50", "3.00"]
    assert row_of(table, decodes(8).name)[-3:] == [MISSING] * 3


def test_an_engine_that_ends_early_is_missing_everywhere() -> None:
    found = compared("float", arm0=(2.0, 0.030), arm2=(4.0, 0.045))
    for reason in (NotMeasured("it ended"), NotMeasured("it ended")):
        found.miss(FORMATS["float"][2], reason)
    assert all("transformers" not in engines for engines in found.played.values())
    assert found.notes == ["it ended."]
    assert row_of(engines_table(found, NEED, "float32"), ONE_DECODE.name)[-3:] == [MISSING] * 3


def test_first_tokens_are_compared_with_the_same_weights_in_float32() -> None:
    found = compared("int8", arm0=(2.0, 0.030), arm5=(1.0, 0.02))
    of_baton, *others, of_llama = row_of(engines_table(found, NEED, "float32"), FIRST_TOKENS)[1:7]
    assert (of_baton, of_llama) == ("1 of 2", "1 of 2")
    assert others == [MISSING] * 4
    found.miss_exact(FORMATS["int8"][5].exact, NotMeasured("no file"))
    assert row_of(engines_table(found, NEED, "float32"), FIRST_TOKENS)[6] == MISSING


def test_each_engine_is_compared_with_the_floors_of_its_own_bytes() -> None:
    table = engines_table(compared("float", arm0=(8.192, 0.045)), NEED, "float32")
    assert row_of(table, READING)[1] == "1.50"
    assert row_of(table, MULTIPLYING)[1] == "2.00"
    # 100 million weights of 8 bits are 5 ms, and 50 million of float32 10 ms; of 8.5 bits, all are 7.97 ms.
    table = engines_table(compared("int8", arm0=(8.192, 0.030), arm5=(8.192, 0.030)), NEED, "float32")
    assert row_of(table, READING)[1] == "2.00"
    assert row_of(table, READING)[6] == "3.76"
    assert MULTIPLYING not in table
    assert row_of(limits_table([LIMITS]), "memory, GB/s") == ["20.0"]


def test_every_arm_has_a_name_of_its_own_and_baton_comes_first() -> None:
    arms = [arm for form in FORMATS.values() for arm in form]
    assert len({arm.name for arm in arms}) == len(arms)
    for form, (first, *_) in FORMATS.items():
        assert first.is_own, form


def test_rows_of_queries_and_keys_have_the_order_of_llama_cpp() -> None:
    # Two heads of four rows: those of i and i + 2 belong together.
    rows = np.array([0, 1, 2, 3, 10, 11, 12, 13])[:, None]
    assert interleaved(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 10, 12, 11, 13]


def test_only_weights_that_a_token_uses_are_counted(tiny: Path) -> None:
    need = need_of(tiny)
    assert need.read_weights == TINY.model.weights
    assert need.read_weights - need.layer_weights == TINY.model.hidden * TINY.model.vocab


def test_the_random_models_have_the_weights_that_they_are_named_after() -> None:
    for shape, weights in ((SHAPE, 200e6), (WIDE, 500e6)):
        assert SHAPES[shape.name] is shape
        assert shape.weights + shape.hidden * shape.vocab == pytest.approx(weights, rel=0.02)
    assert WIDE.heads.query == 8 * WIDE.heads.kv


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


@pytest.mark.long
@pytest.mark.usefixtures("forked_services")
def test_a_fleet_and_transformers_play_the_same_loads(tiny: Path) -> None:
    whole = Load("whole", 2, 16, output_tokens=3)

    async def play() -> list[list[Played]]:
        setting = Setting(tiny, "float32", 1, 32)
        async with baton(setting) as fleet, peers.transformers(setting) as peer:
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
        async with peers.transformers(Setting(tmp_path, "float32", 1, 32)):
            pass

    with pytest.raises(NotMeasured, match=r"the process of transformers ended: (?s:.*)config\.json"):
        asyncio.run(start())


@pytest.mark.long
@pytest.mark.usefixtures("forked_services")
@pytest.mark.parametrize("quantisation", ["int8", "int4", "int4+logits8"])
def test_weights_are_what_those_of_baton_stand_for(tiny: Path, quantisation: str) -> None:
    """A fleet and transformers with what its weights stand for choose the same first tokens."""

    async def play() -> list[Played]:
        setting = Setting(tiny, "float32", 1, 32)
        prompts = CHECKED.prompts(1, TINY.model.vocab)
        found = []
        for start in (baton, peers.rounded_by_baton):
            async with start(setting, quantisation) as engine:
                found.append(await engine.play(CHECKED, prompts))
        return found

    ours, exact = asyncio.run(play())
    same = sum(own == other for own, other in zip(ours.first_tokens, exact.first_tokens, strict=True))
    assert same >= 31  # of 32: two tokens may be equally likely but for rounding


@pytest.mark.parametrize(
    ("start", "environment"),
    [(peers.openvino, "openvino"), (partial(peers.llama_cpp, form="Q8_0"), "llama-cpp")],
    ids=["OpenVINO", "llama.cpp"],
)
def test_a_peer_without_its_environment_is_not_measured(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start, environment: str
) -> None:
    monkeypatch.setattr(forms, "OPENVINO", tmp_path)
    monkeypatch.setattr(forms, "MADE", tmp_path)
    monkeypatch.setattr(peers, "LLAMA_CPP", tmp_path)

    async def begin() -> None:
        async with start(Setting(tiny, "float32", 1, 32)):
            pass

    with pytest.raises(NotMeasured, match=rf"make \.venv-{environment}/\.ready"):
        asyncio.run(begin())


@pytest.mark.parametrize(
    ("flags", "message"), [(["--part", "magic"], "accepted: float, int8"), (["--model"], "512 positions")]
)
def test_what_cannot_be_measured_is_refused(
    tiny: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [str(tiny)] if flags == ["--model"] else []
    assert main(["cpu", *flags, *values]) == 2
    assert message in capsys.readouterr().err
