from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.store_kv import store_kv, store_kv_reference
from tests.kernels.interpreter import Interpreter
from tests.kernels.tensors import randn, same_bits

LAYER = 1


def nan_pool(block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((5, 3, 2, block_size, num_kv_heads, head_dim), torch.nan, dtype=dtype)


def assert_holds_only(pool: Tensor, key: Tensor, value: Tensor, slots: list[int]) -> None:
    """Slot by slot, in Python: the pool is NaN but for what `slots` received."""
    block_size = pool.shape[3]
    want = torch.full_like(pool, torch.nan)
    for token, slot in enumerate(slots):
        if slot >= 0:
            want[slot // block_size, LAYER, 0, slot % block_size] = key[token]
            want[slot // block_size, LAYER, 1, slot % block_size] = value[token]
    assert same_bits(pool, want)


# One token, the first and the last slot of a block, a skipped token between kept ones, only skipped tokens.
SLOTS = {"one": [37], "page_borders": [0, 15, 16, 31, 79], "skipped": [3, -1, 64, -1, 5], "none": [-1, -1]}


@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_reference_writes_the_named_slots_of_its_layer_only(slots: list[int]) -> None:
    pool, key, value = nan_pool(16, 2, 8), randn(len(slots), 2, 8), randn(len(slots), 2, 8, seed=1)
    store_kv_reference(key, value, pool[:, LAYER], torch.tensor(slots, dtype=torch.int64))
    assert_holds_only(pool, key, value, slots)


@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_wrapper_writes_without_a_gpu(slots: list[int]) -> None:
    pool, key, value = nan_pool(16, 2, 8), randn(len(slots), 2, 8), randn(len(slots), 2, 8, seed=1)
    store_kv(key, value, pool[:, LAYER], torch.tensor(slots, dtype=torch.int64))
    assert_holds_only(pool, key, value, slots)


def interpreted_pool(
    interpreter: Interpreter, pool: Tensor, key: Tensor, value: Tensor, slots: list[int]
) -> Tensor:
    """The whole pool after the kernel has written to its layer."""
    _, after = interpreter.run_and_return_args(
        "store_kv", key, value, pool[:, LAYER], torch.tensor(slots, dtype=torch.int64)
    )
    layer: Tensor = after[2]
    return layer.as_strided(pool.shape, pool.stride(), storage_offset=0)


@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_kernel_writes_the_named_slots_of_its_layer_only(interpreter: Interpreter, slots: list[int]) -> None:
    pool, key, value = nan_pool(16, 2, 8), randn(len(slots), 2, 8), randn(len(slots), 2, 8, seed=1)
    assert_holds_only(interpreted_pool(interpreter, pool, key, value, slots), key, value, slots)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("num_kv_heads", "head_dim", "block_size"), [(1, 16, 16), (3, 80, 32), (8, 256, 8)])
def test_kernel_copies_every_bit(
    interpreter: Interpreter, dtype: torch.dtype, num_kv_heads: int, head_dim: int, block_size: int
) -> None:
    pool = nan_pool(block_size, num_kv_heads, head_dim, dtype)
    slots = [block_size - 1, 7, -1, 5 * block_size - 1]
    key = randn(4, num_kv_heads, head_dim).to(dtype)
    value = randn(4, num_kv_heads, head_dim, seed=1).to(dtype)
    assert_holds_only(interpreted_pool(interpreter, pool, key, value, slots), key, value, slots)


def test_kernel_takes_views_of_a_fused_projection(interpreter: Interpreter) -> None:
    qkv = randn(3, 8, 16)
    key, value = qkv[:, 4:6], qkv[:, 6:8]
    slots = [1, 17, 33]
    got = interpreted_pool(interpreter, nan_pool(16, 2, 16), key, value, slots)
    assert_holds_only(got, key, value, slots)


def test_no_tokens_write_nothing(interpreter: Interpreter) -> None:
    got = interpreted_pool(interpreter, nan_pool(16, 2, 8), randn(0, 2, 8), randn(0, 2, 8), [])
    assert got.isnan().all()


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "slot_past_the_end": (
        {"slot_mapping": torch.tensor([0, 80])},
        "slot_mapping holds 80; accepted: below",
    ),
    "slots_int32": ({"slot_mapping": torch.tensor([0, 1]).int()}, "slot_mapping has dtype torch.int32"),
    "slots_two_dims": ({"slot_mapping": torch.zeros(2, 1).long()}, "slot_mapping has shape"),
    "slots_strided": ({"slot_mapping": torch.arange(4)[::2]}, "slot_mapping has stride 2"),
    "key_tokens": ({"key": torch.zeros(3, 2, 8)}, r"key has shape \[3, 2, 8\]; accepted: \[2, 2, 8\]"),
    "value_heads": ({"value": torch.zeros(2, 3, 8)}, r"value has shape \[2, 3, 8\]; accepted: \[2, 2, 8\]"),
    "key_dtype": (
        {"key": torch.zeros(2, 2, 8).half()},
        "key has dtype torch.float16; accepted",
    ),
    "value_strided": ({"value": torch.zeros(2, 8, 2).mT}, "value has stride 2 in its last dimension"),
    "pool_of_ints": ({"kv_layer": torch.zeros(5, 2, 16, 2, 8).int()}, "kv_layer has dtype torch.int32"),
    "whole_pool": ({"kv_layer": torch.zeros(5, 3, 2, 16, 2, 8)}, r"accepted: \[num_blocks, 2, block_size"),
    "device": ({"value": torch.zeros(2, 2, 8, device="meta")}, "value is on meta; accepted: cpu"),
}


@pytest.mark.parametrize("bad", BAD_ARGUMENTS)
def test_refuses(bad: str) -> None:
    changed, message = BAD_ARGUMENTS[bad]
    good = {
        "key": torch.zeros(2, 2, 8),
        "value": torch.zeros(2, 2, 8),
        "kv_layer": torch.zeros(5, 2, 16, 2, 8),
        "slot_mapping": torch.tensor([0, 1]),
    }
    with pytest.raises(ValueError, match=message):
        store_kv(**{**good, **changed})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_compiled_kernel_fills_a_pool_beyond_32_bit_offsets(dtype: torch.dtype) -> None:
    pool = torch.empty(2100, 64, 2, 16, 8, 128, dtype=dtype, device="cuda")  # 2.2 · 2³¹ elements
    layer = pool[:, 63].fill_(torch.nan)
    slots = torch.arange(2100 * 16).flip(0)[:5000]  # the highest slots, downwards
    slots[::7] = -1
    key, value = randn(5000, 8, 128).to(dtype), randn(5000, 8, 128, seed=1).to(dtype)
    want = torch.full(layer.shape, torch.nan, dtype=dtype)
    store_kv_reference(key, value, want, slots)
    store_kv(key.cuda(), value.cuda(), layer, slots.cuda())
    assert same_bits(layer.cpu(), want)
