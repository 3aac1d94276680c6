from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.profiles import load_profile, names
from scheduling.cost.profiles import dump
from scheduling.cost_model import StepShape

H200 = "h200-llama-3.1-8b"


@pytest.mark.parametrize("name", names())
def test_a_profile_that_comes_along_is_called_what_its_file_is(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.measured, "says what was measured"
    assert profile.cost.is_trusted


def test_a_file_is_a_profile_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(dump(load_profile(H200)), encoding="utf-8")
    assert load_profile(str(path)) == load_profile(H200)


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(ValueError, match=f"profile is 'h100'; accepted: .*{H200}.*or the path"):
        load_profile("h100")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.json' cannot be read"):
        load_profile(str(tmp_path / "nowhere.json"))


def test_a_wrong_field_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    document = json.loads(dump(load_profile(H200))) | {"num_blocks": -1}
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine\.json': num_blocks is -1; accepted: a whole number from 1"):
        load_profile(str(path))


@pytest.mark.parametrize(
    ("num_decodes", "milliseconds"), [(1, 4.9), (8, 5.2), (32, 6.3), (64, 8.0), (128, 11.5), (256, 20.3)]
)
def test_the_h200_s_decode_steps_are_the_measured_ones(num_decodes: int, milliseconds: float) -> None:
    shape = StepShape.of(num_decodes, num_decodes * 1092, [])
    assert load_profile(H200).cost.predict(shape) * 1000 == pytest.approx(milliseconds, rel=0.025)


@pytest.mark.parametrize(("prompts", "tokens", "per_s"), [(16, 2048, 41_300), (4, 8192, 37_100)])
def test_the_h200_s_prefill_is_the_measured_one(prompts: int, tokens: int, per_s: int) -> None:
    step = StepShape.of(0, 0, [(0, tokens)] * (8192 // tokens))
    num_steps = prompts * tokens // 8192
    assert prompts * tokens / (num_steps * load_profile(H200).cost.predict(step)) == pytest.approx(
        per_s, rel=0.01
    )
