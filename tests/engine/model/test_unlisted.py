"""Architectures off the list that no proof could save are refused by their configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import ModelRefused
from engine.model.model import load_model
from engine.model.unlisted import check_unlisted
from tests import model_zoo

SMALL = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}


def check(directory: Path, config: dict[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    check_unlisted(directory, config)


@pytest.mark.parametrize(
    ("config", "field", "message"),
    [
        (
            {"model_type": "own", "auto_map": {"AutoModel": "code.Model"}},
            "auto_map",
            r"names code \(.*\); accepted: absent, since no such code is run",
        ),
        (
            {"model_type": "own"},
            "model_type",
            "is 'own'; accepted: a causal language model that transformers",
        ),
        (
            {"model_type": "vit"},
            "model_type",
            "is 'vit'; accepted: a causal language model that transformers",
        ),
        ({"model_type": "bart"}, "is_encoder_decoder", "is True; accepted: a model that has only a decoder"),
        ({"model_type": "bloom"}, "model_type", "is 'bloom', whose attention does not go through"),
        ({"model_type": "rwkv"}, "model_type", "is 'rwkv', which keeps a recurrent state"),
        ({"model_type": "qwen3_next"}, "layer_types", "has 'linear_attention'; accepted: full_attention"),
        ({"model_type": "llama4_text"}, "layer_types", "has 'chunked_attention'; accepted: full_attention"),
        ({"model_type": "deepseek_v32"}, "layer_types", "has 'deepseek_sparse_attention'; accepted: full"),
        (
            {"model_type": "lfm2", "num_hidden_layers": 2, "layer_types": ["full_attention", "conv"]},
            "layer_types",
            "has 'conv'; accepted: full_attention, sliding_attention",
        ),
        ({"model_type": "gemma3n_text"}, "num_kv_shared_layers", "is 15; accepted: 0"),
        ({"model_type": "gemma3"}, "text_config", "is the config of one part of several; accepted: a check"),
        ({"model_type": "olmoe", "num_hidden_layers": "four"}, "config.json", "cannot be read"),
    ],
)
def test_a_field_that_does_not_fit_is_named(
    config: dict[str, Any], field: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelRefused, match=message) as refusal:
        check(tmp_path, config)
    assert refusal.value.field == field


@pytest.mark.parametrize("model_type", [case.model_type for case in model_zoo.UNLISTED.values()])
def test_what_may_fit_is_left_to_the_proof(model_type: str, tmp_path: Path) -> None:
    check(tmp_path, {"model_type": model_type, **SMALL})


def load(directory: Path) -> None:
    load_model(directory, torch.float64, torch.device("cpu"), unlisted=True)


@pytest.mark.parametrize(
    ("model_type", "config", "message"),
    [
        (
            "phimoe",
            {"num_local_experts": 4, "sliding_window": 6},
            "sliding_window is 6 in layer 0, whose att",
        ),
        (
            "mimo_v2_flash",
            {"v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2},
            "attention heads are ",
        ),
        ("nemotron", {}, "attention does not go through the attention function"),
    ],
)
def test_layers_that_blocks_cannot_serve_are_refused(
    model_type: str, config: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(model_zoo.UNLISTED, model_type, model_zoo.Case(model_type, config))
    with pytest.raises(ModelRefused, match=message):
        load(model_zoo.build(model_type, tmp_path))


def test_a_model_without_a_longest_context_is_refused(tmp_path: Path) -> None:
    directory = model_zoo.build("gemma", tmp_path)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = None
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelRefused, match="max_position_embeddings"):
        load(directory)
