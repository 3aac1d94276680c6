"""Random LoRA adapters, as peft writes them, and checkpoints with one merged in, to compare with.

write_adapter(directory, tmp_path / "red", seed=1, targets=("q_proj", "down_proj"))
merged = merge(directory, tmp_path / "red", tmp_path / "merged")
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

ALPHA = 8


@lru_cache(maxsize=8)
def _stock(directory: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float64, local_files_only=True
    )


def linear_names(directory: Path) -> list[str]:
    """Return the last names of the linear layers of a checkpoint, without the one of the logits."""
    model = _stock(directory)
    logits = model.get_output_embeddings()
    names = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not logits
    }
    return sorted(names)


def write_adapter(
    directory: Path, target: Path, *, seed: int, rank: int = 4, targets: Sequence[str] = (), **config: object
) -> Path:
    """Write a random adapter for a checkpoint's `targets`; by default for all linear layers."""
    chosen = targets or linear_names(directory)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, module in _stock(directory).named_modules():
        if name.rpartition(".")[2] not in chosen:
            continue
        inputs, outputs = module.weight.shape if isinstance(module, Conv1D) else module.weight.shape[::-1]
        for kind, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            matrix = torch.randn(shape, generator=generator, dtype=torch.float64) * 0.2
            tensors[f"base_model.model.{name}.lora_{kind}.weight"] = matrix
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": ALPHA,
        "target_modules": list(chosen),
        "bias": "none",
    }
    target.mkdir(parents=True)
    save_file(tensors, target / "adapter_model.safetensors")
    (target / "adapter_config.json").write_text(json.dumps(settings | config), encoding="utf-8")
    return target


@torch.no_grad()
def merge(directory: Path, adapter: Path, target: Path) -> Path:
    """Write the checkpoint with W + scale * B A in place of each adapted W."""
    if target.exists():
        return target
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float64, local_files_only=True
    )
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    root = config["r"] ** 0.5 if config.get("use_rslora") else config["r"]
    tensors = load_file(adapter / "adapter_model.safetensors")
    for key in [key for key in tensors if ".lora_A." in key]:
        module: Any = model.get_submodule(
            key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        )
        added = config["lora_alpha"] / root * tensors[key.replace("lora_A", "lora_B")] @ tensors[key]
        module.weight.add_(added.t() if isinstance(module, Conv1D) else added)
    model.save_pretrained(target)
    return target


def copy_adapter(source: Path, target: Path, **changes: object) -> Path:
    """Copy an adapter, and change fields of its config; None removes a field."""
    shutil.copytree(source, target)
    path = target / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(config), encoding="utf-8")
    return target
