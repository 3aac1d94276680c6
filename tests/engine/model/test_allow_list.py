from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelRefused
from engine.model.allow_list import ARCHITECTURES, is_listed, read_config
from tests import model_zoo


def write(directory: Path, config: object) -> Path:
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def test_a_model_of_the_zoo_proves_every_listed_architecture() -> None:
    assert {case.model_type for case in model_zoo.CASES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_listed_architecture_is_accepted(architecture: str, tmp_path: Path) -> None:
    config = {"model_type": architecture, "vocab_size": 97}
    assert read_config(write(tmp_path, config)) == config


@pytest.mark.parametrize("architecture", ["bloom", "falcon", "deepseek_v3", "LLAMA", None, 7])
def test_any_other_architecture_is_refused(architecture: object, tmp_path: Path) -> None:
    with pytest.raises(
        ModelRefused, match=rf"model_type is {architecture!r}; accepted: gemma2, .*, qwen3_moe"
    ):
        read_config(write(tmp_path, {"model_type": architecture}))


def test_unlisted_architectures_are_accepted_where_they_are_proven(tmp_path: Path) -> None:
    config = {"model_type": "olmoe", "vocab_size": 97}
    assert read_config(write(tmp_path, config), unlisted=True) == config
    assert not is_listed(config)


@pytest.mark.parametrize(
    ("rope", "field"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_scaling.type"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}},
            "rope_parameters.full_attention.rope_type",
        ),
    ],
)
def test_rope_that_depends_on_the_batch_is_refused(rope: dict[str, Any], field: str, tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="; accepted: default, linear, llama3, yarn") as refusal:
        read_config(write(tmp_path, {"model_type": "llama", **rope}))
    assert refusal.value.field == field


def test_rope_that_depends_on_the_position_alone_is_accepted(tmp_path: Path) -> None:
    for rope_type in ("default", "linear", "llama3", "yarn"):
        read_config(write(tmp_path, {"model_type": "llama", "rope_scaling": {"rope_type": rope_type}}))
    read_config(write(tmp_path, {"model_type": "llama", "rope_scaling": None}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_bidirectional_attention", True),
        ("reorder_and_upcast_attn", True),
        ("is_encoder_decoder", True),
        ("add_cross_attention", True),
    ],
)
def test_a_field_that_changes_what_is_computed_is_refused(field: str, value: object, tmp_path: Path) -> None:
    read_config(write(tmp_path, {"model_type": "gpt2", field: False}))
    with pytest.raises(ModelRefused, match=f"{field} is "):
        read_config(write(tmp_path, {"model_type": "gpt2", field: value}))


def test_a_directory_without_a_readable_config_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        ModelRefused, match=rf"model {tmp_path}/none: the path is not a directory; accepted: a model"
    ):
        read_config(tmp_path / "none")
    with pytest.raises(ModelRefused, match=r"config\.json is missing; accepted: "):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelRefused, match=r"config\.json is not JSON \(.*\); accepted: a JSON object"):
        read_config(tmp_path)
    with pytest.raises(ModelRefused, match=r"config\.json holds a list; accepted: a JSON object"):
        read_config(write(tmp_path, []))
