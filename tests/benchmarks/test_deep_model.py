"""A model with more layers, for a draft model to draft for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from benchmarks.deep_model import EFFECT, deepen
from tests.model_zoo import MAX_CONTEXT, build, load_stock


def test_copies_of_layers_follow_the_model_s_own(tmp_path: Path) -> None:
    model = build("llama", tmp_path / "model")
    deep = deepen(model, tmp_path / "deep", 10)
    own, all_layers = (load_stock(directory).model.layers for directory in (model, deep))
    assert (len(own), len(all_layers)) == (4, 10)
    for place, layer in enumerate(all_layers):
        copied, scale = own[place % 4], EFFECT if place >= 4 else 1.0
        assert torch.equal(layer.self_attn.q_proj.weight, copied.self_attn.q_proj.weight)
        assert torch.equal(layer.mlp.down_proj.weight, copied.mlp.down_proj.weight * scale)
    assert json.loads((deep / "config.json").read_text())["max_position_embeddings"] == MAX_CONTEXT


def test_fewer_layers_and_other_families_are_refused(tmp_path: Path) -> None:
    llama, qwen2 = build("llama", tmp_path / "llama"), build("qwen2", tmp_path / "qwen2")
    with pytest.raises(
        ValueError, match=re.escape("num_layers is 4 for a llama of 4 layers; accepted: more")
    ):
        deepen(llama, tmp_path / "deep", 4)
    with pytest.raises(ValueError, match="num_layers is 9 for a qwen2"):
        deepen(qwen2, tmp_path / "deep", 9)
    assert not (tmp_path / "deep").exists()
