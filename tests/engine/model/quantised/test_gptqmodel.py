"""Layers that gptqmodel 7.7.0 has written stand for the weights that it reads of them, bit for bit.

It is what transformers loads checkpoints of GPTQ and AWQ with. `write_gptqmodel` says how the file was made.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from engine.model.quantised.checkpoint import check_quantised
from engine.model.quantised.stored_linears import StoredLinear

FILE = Path(__file__).with_name("gptqmodel.safetensors")
with safe_open(FILE, "pt") as _file:
    CONFIGS: dict[str, dict[str, Any]] = json.loads(_file.metadata()["configs"])
    TENSORS: dict[str, Tensor] = {name: _file.get_tensor(name) for name in _file.keys()}  # noqa: SIM118 -- no mapping


@pytest.mark.parametrize("form", sorted(CONFIGS))
def test_weights_are_those_that_gptqmodel_reads(form: str) -> None:
    config = CONFIGS[form]
    check_quantised(Path(form), config)
    stored = {
        name.removeprefix(f"{form}."): tensor
        for name, tensor in TENSORS.items()
        if name.startswith(f"{form}.")
    }
    weight = stored.pop("weight")
    outputs, inputs = weight.shape
    linear = StoredLinear(
        nn.Linear(inputs, outputs, bias=False),
        {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in stored.items()},
        zeros_are_whole=config["checkpoint_format"] == "gptq_v2",
    )
    linear.load_state_dict(stored)
    with torch.inference_mode():
        read = linear.unpacked(torch.device("cpu"))(torch.eye(inputs)).t()
    assert torch.equal(read.half(), weight)
