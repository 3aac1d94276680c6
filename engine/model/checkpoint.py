"""Checks of a checkpoint's files before a minute is spent on loading them."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

from engine.errors import ModelRefused
from engine.model.quantised.gguf_file import has_gguf, read_gguf
from gguf_model.folder import WEIGHTS
from model_output.text.model_files import FileUnusable, eos_token_ids, read_object, read_tokenizer

MAX_HEADER_BYTES = 100 << 20


def check_weights(directory: Path) -> None:
    """Refuse a directory whose safetensors files are missing or end too early."""
    if has_gguf(directory):
        read_gguf(directory)  # its tensors lie within the file
        return
    for path in weight_files(directory):
        if not path.is_file():
            raise ModelRefused(directory, path.name, "is missing", "every file that the index names")
        expected, found = _expected_bytes(directory, path), path.stat().st_size
        if found != expected:
            raise ModelRefused(directory, path.name, f"has {found} bytes", f"{expected}, as its header says")


def weight_bytes(directory: Path) -> int:
    """Return the size of the files with the weights, which must have been checked."""
    return sum(path.stat().st_size for path in weight_files(directory))


def tensor_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in the files with the weights, which must have been checked."""
    return {
        name: tuple(facts["shape"])
        for path in weight_files(directory)
        for name, facts in _read_header(path)[1].items()
        if name != "__metadata__"
    }


def check_tokenizer(directory: Path) -> None:
    """Refuse a directory whose tokenizer is missing or broken, or whose end of a text is unknown."""
    accepted = "a tokenizer of the `tokenizers` library"
    try:
        read_tokenizer(directory / "tokenizer.json")
    except FileNotFoundError:
        raise ModelRefused(directory, "tokenizer.json", "is missing", accepted) from None
    except FileUnusable as error:
        raise ModelRefused(directory, error.path.name, error.found, error.accepted) from error
    stated_ends(directory, vocab_size=0)


def stated_ends(directory: Path, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens that end a sequence. transformers would pass over a broken file."""
    try:
        return eos_token_ids(directory, vocab_size)
    except FileUnusable as error:
        raise ModelRefused(directory, error.path.name, error.found, error.accepted) from error


def weight_files(directory: Path) -> list[Path]:
    """Return the files with the weights, in order; others, such as another format's, are left alone."""
    if has_gguf(directory):
        return [directory / WEIGHTS]
    index = directory / "model.safetensors.index.json"
    if not os.path.lexists(index):
        single = directory / "model.safetensors"
        if not single.is_file():
            raise ModelRefused(
                directory,
                "model.safetensors",
                "is missing",
                "it, or model.safetensors.index.json with its files",
            )
        return [single]
    try:
        names = set(read_object(index)["weight_map"].values())
    except FileUnusable as error:
        raise ModelRefused(directory, index.name, error.found, "a JSON object with a weight_map") from error
    except (OSError, KeyError, AttributeError, TypeError) as error:
        raise ModelRefused(
            directory, index.name, f"cannot be read ({error!r})", "a JSON object with a weight_map"
        ) from error
    return [directory / str(name) for name in sorted(names)]


def _expected_bytes(directory: Path, path: Path) -> int:
    """Return the file size by its header: 8 bytes of header length, the header, then its tensors."""
    try:
        length, header = _read_header(path)
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        return 8 + length + int(max(ends, default=0))
    except (
        struct.error, OSError, ValueError, KeyError, AttributeError, TypeError, IndexError, OverflowError,
        RecursionError,
    ) as error:  # fmt: skip
        raise ModelRefused(
            directory, path.name, f"has no readable header ({error})", "a complete safetensors file"
        ) from error


def _read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Return a header's length in bytes, and its description of each tensor."""
    with path.open("rb") as file:
        length: int = struct.unpack("<Q", file.read(8))[0]
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"header of {length} bytes")
        header: dict[str, Any] = json.loads(file.read(length))
    return length, header
