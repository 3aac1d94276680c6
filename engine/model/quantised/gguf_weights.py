"""Loads the tensors of a GGUF file into transformers' model: whole numbers as they are stored.

Floats become the model's dtype, as those of any checkpoint. Of a matrix of whole numbers, the rows of bytes
take the place of the weight until they are read (`gguf_blocks`). The file is mapped, so bytes are read when
they are used, and those of floats that have the model's dtype are shared by the processes of a host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from engine.errors import ModelRefused
from engine.model.quantised.gguf_blocks import groups_of
from engine.model.quantised.gguf_file import read_gguf
from engine.model.quantised.stored_linears import with_layers_replaced
from engine.model.quantised.whole_linears import GroupedEmbedding, GroupedLinear
from gguf_model.architectures import GgufModel, Target
from gguf_model.header import TensorPlace
from gguf_model.tensor_types import TensorType

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCKS, _EMBEDDING, _HEAD = "blocks", "model.embed_tokens", "lm_head"


class StoredBlocks(nn.Module):
    """Takes the place of a linear layer or an embedding while the tensors of the file are read."""

    blocks: Tensor
    bias: nn.Parameter | None

    def __init__(self, module: nn.Linear | nn.Embedding, kind: TensorType) -> None:
        super().__init__()
        rows, inputs = module.weight.shape
        self._kind = kind
        self.is_embedding = isinstance(module, nn.Embedding)
        self.factor = float(getattr(module, "scalar_embed_scale", 1.0))
        """The number that transformers' embedding multiplies rows by."""
        self._dtype = module.weight.dtype
        self.register_buffer(_BLOCKS, torch.empty(rows, kind.row_bytes(inputs), dtype=torch.uint8))
        self.bias = getattr(module, "bias", None)

    def unpacked(self, device: torch.device) -> GroupedLinear:
        """Return a layer that computes."""
        groups = groups_of(self.blocks.to(device), self._kind)
        bias = None if self.bias is None else self.bias.data.to(device)
        shared = groups.numbers, groups.scale, None, bias
        return GroupedLinear(*shared, offset=groups.offset, bits=groups.bits, dtype=self._dtype)


def loader(directory: Path) -> tuple[Any, dict[str, Any]]:
    """Return a model class that can load the file in a folder, and its arguments.

    The class takes None in place of a folder.
    """
    library: Any = transformers
    file = read_gguf(directory)
    stock = library.AutoConfig.from_pretrained(directory, local_files_only=True)
    if hasattr(stock, "quantization_config"):
        del stock.quantization_config
    model_class = library.MODEL_FOR_CAUSAL_LM_MAPPING[type(stock)]
    kinds = {target.name: file.header.tensors[name].type for name, target in file.targets.items()}
    stored = {name.removesuffix(".weight"): kind for name, kind in kinds.items() if not kind.is_float}
    tensors = _tensors(file)
    names = list(stored)
    if stock.tie_word_embeddings and _EMBEDDING in stored:
        # transformers would look for a weight to share.
        stock.tie_word_embeddings = False
        tensors[f"{_HEAD}.{_BLOCKS}"] = tensors[f"{_EMBEDDING}.{_BLOCKS}"]
        names.append(_HEAD)

    def blocks(model: nn.Module, name: str) -> nn.Module:
        if name not in stored:
            return model.get_submodule(_EMBEDDING)  # the head has those of the embedding
        module = model.get_submodule(name)
        if not isinstance(module, nn.Linear | nn.Embedding):
            raise TypeError(f"{name} is quantised but neither a linear layer nor an embedding")
        return StoredBlocks(module, stored[name])

    return with_layers_replaced(model_class, names, blocks), {"config": stock, "state_dict": tensors}


def _tensors(file: GgufModel) -> dict[str, Tensor]:
    """Return the tensors of a file by transformers' names: floats, or rows of bytes under `blocks`."""
    path = file.header.path
    content = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
    tensors = {}
    for name, target in file.targets.items():
        place = file.header.tensors[name]
        rows = content[place.offset : place.offset + place.num_bytes]
        if place.type.is_float:
            tensors[target.name] = _in_order(_floats(rows, place, target), target)
        else:
            stored = f"{target.name.removesuffix('.weight')}.{_BLOCKS}"
            tensors[stored] = _in_order(rows.view(place.shape[0], -1), target)
    return tensors


def _floats(rows: Tensor, place: TensorPlace, target: Target) -> Tensor:
    numbers = rows.view(_FLOATS[place.type.name]).view(place.shape)
    return numbers.float() - target.added if target.added else numbers


def _in_order(rows: Tensor, target: Target) -> Tensor:
    """Return rows in transformers' order: of each head first the even ones, then the odd ones."""
    if not target.heads:
        return rows
    pairs = torch.unflatten(rows, 0, (target.heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2)


@torch.inference_mode()
def unpack_blocks(directory: Path, model: Any, device: torch.device) -> None:
    """Replace all StoredBlocks by modules that compute, on `device`, one after the other."""
    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if not isinstance(module, StoredBlocks):
            continue
        if device.type != "cpu":
            found = f"has groups of inputs that share a scale, on {device}"
            raise ModelRefused(directory, name, found, "on a CPU, or a file in F32, F16 or BF16")
        linear = module.unpacked(device)
        if not module.is_embedding:
            model.set_submodule(name, linear)
            continue
        model.set_submodule(name, GroupedEmbedding(linear, module.factor))
        if head is module:
            model.set_output_embeddings(linear)
            model.config.tie_word_embeddings = True
