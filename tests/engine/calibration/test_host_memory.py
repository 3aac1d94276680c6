"""A model that does not fit into memory is refused with the numbers, before the kernel kills the worker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.building.build import build
from engine.calibration.host_memory import check_blocks_fit, check_model_fits, loaded_bytes
from engine.errors import ModelRefused
from engine.kv.kv_pool import BlockLayout
from engine.model.checkpoint import weight_bytes
from tests import model_zoo
from tests.engine.small_settings import small_settings

MIB = 1 << 20
LAYOUT = BlockLayout(2, 16, 2, 64, torch.float32)
SIZES = st.integers(0, 1 << 40)


def test_the_sentence_names_what_is_needed_and_what_would_be_accepted() -> None:
    sentence = (
        "--model llama takes 1000 MiB of weights in bfloat16 and 256 MiB of KV, but 1100 MiB of memory are "
        "available to this process; accepted: 1256 MiB or more, or --kv-memory-mb up to 100"
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_model_fits(Path("/models/llama"), torch.bfloat16, 1000 * MIB, 256 * MIB, 1100 * MIB)
    with pytest.raises(ValueError, match=r"accepted: 1256 MiB or more$"):
        check_model_fits(Path("llama"), torch.bfloat16, 1000 * MIB, 256 * MIB, 900 * MIB)


@given(SIZES, SIZES, SIZES)
def test_what_fits_is_accepted_and_nothing_else(weights: int, pool: int, available: int) -> None:
    try:
        check_model_fits(Path("m"), torch.float32, weights, pool, available)
    except ValueError:
        assert weights + pool > available
    else:
        assert weights + pool <= available


@given(st.integers(1, 1000), st.integers(0, 1000 * LAYOUT.block_bytes))
def test_as_many_blocks_as_are_accepted_fit(num_blocks: int, available: int) -> None:
    if num_blocks * LAYOUT.block_bytes <= available:
        check_blocks_fit(LAYOUT.block_bytes, num_blocks, available)
    else:
        sentence = f"accepted: 1 to {available // LAYOUT.block_bytes}$"
        with pytest.raises(ValueError, match=sentence):
            check_blocks_fit(LAYOUT.block_bytes, num_blocks, available)


def test_weights_are_counted_in_the_type_that_they_are_loaded_in(tmp_path: Path) -> None:
    directory = model_zoo.build("llama", tmp_path)
    size = weight_bytes(directory)
    assert loaded_bytes(directory, {"dtype": "float32"}, torch.float32) == size
    assert loaded_bytes(directory, {"dtype": "float16"}, torch.float32) == 2 * size
    assert loaded_bytes(directory, {"torch_dtype": "float32"}, torch.bfloat16) == size // 2
    quantised = {"dtype": "bfloat16", "quantization_config": {"quant_method": "compressed-tensors"}}
    assert loaded_bytes(directory, quantised, torch.float32) == size


def test_an_engine_that_does_not_fit_is_not_built(tmp_path: Path) -> None:
    directory = model_zoo.build("llama", tmp_path)
    with pytest.raises(ValueError, match="MiB of weights in float32 and 256 MiB of KV, but 100 MiB"):
        build(small_settings(directory, available_bytes=lambda: 100 * MIB))
    with pytest.raises(ValueError, match="--num-blocks is 100000, which take"):
        build(small_settings(directory, available_bytes=lambda: 20 * MIB, num_blocks=100_000))


def test_a_model_without_files_is_refused_for_that(tmp_path: Path) -> None:
    directory = model_zoo.build("llama", tmp_path)
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelRefused, match="is missing"):
        build(small_settings(directory, available_bytes=lambda: 100 * MIB))
