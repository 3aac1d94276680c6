"""The cuts agree with transformers' own plans, and leave each process its share of the weights."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch

from engine.model.model import load_model
from engine.model.parallel.part import Part
from tests import model_zoo

CPU = torch.device("cpu")
NOT_PLANNED = {"gpt2", "opt", "gpt_oss", "olmo2", "phi3"}
"""Families for which the library has no plan, or one that computes attention whole in every process."""
ROWS = {"rowwise"}
COLUMNS = {"colwise", "packed_colwise", "moe_tp_experts"}


@pytest.mark.parametrize(
    "name", [name for name, case in model_zoo.CASES.items() if case.model_type not in NOT_PLANNED]
)
def test_cuts_are_those_of_the_library_s_plan(name: str, tmp_path: Path) -> None:
    directory = model_zoo.build(name, tmp_path / "model")
    module = model_zoo.load_stock(directory)
    model_zoo.load_stock.cache_clear()
    plan = {f"model.{pattern}": style for pattern, style in module.config.base_model_tp_plan.items()}
    before = {key: tensor.shape for key, tensor in module.named_parameters()}
    model = load_model(directory, torch.float64, CPU, part=Part(1, 2))
    after = {key: tensor.shape for key, tensor in model.module.named_parameters()}
    for key, shape in before.items():
        place = re.sub(r"\.(weight|bias)$", "", key)
        style = next((plan[each] for each in plan if fnmatchcase(place, each)), "")
        if style in COLUMNS:
            dim = max(0, len(shape) - 2)
            assert after[key] == (*shape[:dim], shape[dim] // 2, *shape[dim + 1 :]), key
        elif style in ROWS and len(shape) > 1:
            assert after[key] == (*shape[:-1], shape[-1] // 2), key
        elif "lm_head" not in key and "embed" not in key:
            assert after[key] == shape, key


@pytest.mark.parametrize("name", model_zoo.CASES)
def test_parts_add_up_to_the_whole(name: str, tmp_path: Path) -> None:
    """Each weight of two dimensions and more is in one process, but for routers and positions."""
    directory = model_zoo.build(name, tmp_path / "model")
    sizes = [
        {key: tensor.numel() for key, tensor in model.module.named_parameters() if tensor.ndim > 1}
        for model in (
            load_model(directory, torch.float64, CPU),
            *(load_model(directory, torch.float64, CPU, part=Part(rank, 2)) for rank in range(2)),
        )
    ]
    shared = ("router", "mlp.gate.", "wpe", "embed_positions", "experts.down_proj_bias")
    for key, size in sizes[0].items():
        if any(word in key for word in shared):
            assert sizes[1][key] == sizes[2][key] == size
        else:
            assert sizes[1][key] + sizes[2][key] == size, key
