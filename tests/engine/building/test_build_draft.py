"""An engine is built with a draft model that fits it; any other is refused before a weight is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.building.build import build
from engine.building.settings import EngineSettings
from engine.core.commands import Decode
from engine.core.report import StepReport
from engine.errors import DraftRefused
from scheduling.request import StopRules
from tests import model_zoo
from tests.engine.loop_driver import spec
from tests.engine.small_settings import small_settings

NUM_BLOCKS = 64


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_zoo.build("llama", tmp_path_factory.mktemp("target") / "large")


def settings(target: Path, draft: Path, **other: Any) -> EngineSettings:
    return small_settings(target, draft_model=draft, **{"num_blocks": NUM_BLOCKS, **other})


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads(file.read_text(encoding="utf-8"))
    change(values)
    file.write_text(json.dumps(values), encoding="utf-8")


def other_size(draft: Path) -> None:
    edit(draft / "config.json", lambda config: config.update(vocab_size=128))


def other_token(draft: Path) -> None:
    def swap(tokenizer: dict[str, Any]) -> None:
        vocab = tokenizer["model"]["vocab"]
        vocab["A"], vocab["B"] = vocab["B"], vocab["A"]

    edit(draft / "tokenizer.json", swap)


def other_special(draft: Path) -> None:
    def change(tokenizer: dict[str, Any]) -> None:
        tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] != 2]

    edit(draft / "tokenizer.json", change)


def other_architecture(draft: Path) -> None:
    edit(draft / "config.json", lambda config: config.update(model_type="bloom"))


def no_weights(draft: Path) -> None:
    (draft / "model.safetensors").unlink()


def no_tokenizer(draft: Path) -> None:
    (draft / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_size, "vocab_size is 128; accepted: 97, as that of large"),
        (other_token, "the token 36 is 'B'; accepted: 'A', as in large"),
        (other_special, "the special token 2 is missing; accepted: '</s>', as in large"),
        (other_architecture, "model_type is 'bloom'; accepted: gemma2, "),
        (no_weights, "model.safetensors is missing; accepted: "),
        (no_tokenizer, "tokenizer.json is missing; accepted: "),
    ],
)
def test_a_draft_model_that_does_not_fit_is_refused_by_its_field(
    target: Path, tmp_path: Path, change: Callable[[Path], None], says: str
) -> None:
    draft = model_zoo.build("qwen2", tmp_path / "small")
    change(draft)
    with pytest.raises(DraftRefused, match=re.escape(f"--draft-model {draft}: {says}")):
        build(settings(target, draft))


def test_a_folder_that_is_not_there_is_refused(target: Path, tmp_path: Path) -> None:
    with pytest.raises(DraftRefused, match="the path is not a directory; accepted: a model directory"):
        build(settings(target, tmp_path / "nothing"))


def test_weights_and_blocks_of_both_models_have_to_fit(target: Path, tmp_path: Path) -> None:
    draft, mib = model_zoo.build("llama", tmp_path / "small"), 1 << 20
    sentence = "--model large with --draft-model small takes 2 MiB of weights in float32 and 1 MiB of KV"
    with pytest.raises(ValueError, match=sentence):
        build(settings(target, draft, num_blocks=None, kv_memory_mb=1, available_bytes=lambda: mib))
    alone = 97 * 1024 * 1024
    # A block takes 16 KiB in each pool.
    with pytest.raises(ValueError, match=r"--num-blocks is 4000, which take 125 MiB, but 97 MiB"):
        build(settings(target, draft, num_blocks=4000, available_bytes=lambda: alone))


def test_a_built_engine_drafts_with_both_pools_in_the_memory_for_kv(target: Path, tmp_path: Path) -> None:
    draft = model_zoo.build("llama", tmp_path / "small")
    one = build(settings(target, draft, num_blocks=None, kv_memory_mb=1))
    assert one.runner.pool.num_blocks == 32
    reports: list[StepReport] = []
    commands = [Decode(spec(1, range(3, 12), stop=StopRules(40, ignore_eos=True)))]

    def drain(timeout_s: float) -> list[Decode]:
        return [commands.pop()] if commands else []

    one.loop.run(drain, reports.append, lambda: any(report.freed for report in reports))
    tokens = [token_id for report in reports for token_id in report.tokens.token_ids]
    assert len(tokens) == 40
