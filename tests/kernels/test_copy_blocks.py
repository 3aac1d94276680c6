from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.copy_blocks import gather_blocks, scatter_blocks
from tests.kernels.interpreter import Interpreter
from tests.kernels.tensors import same_bits

DTYPES = [torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.float64]
# Blocks of 8-, 4- and 1-byte words, of several pieces, and of one element.
BLOCKS = {
    "words_of_8": (2, 3, 16),
    "words_of_4": (2, 2, 3),
    "pieces": (3, 3100),
    "element": (1,),
    "odd": (5, 3),
}
IDS = {"one": [2], "all": [4, 0, 3, 1, 2], "none": []}


def filled(num_blocks: int, block: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Any bits, NaN among them."""
    size = num_blocks * torch.empty(block, dtype=dtype).nbytes
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(256, (size,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).view(num_blocks, *block)


def bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def by_hand(pool: Tensor, ids: list[int], packed: Tensor, *, gather: bool) -> Tensor:
    """The target as it shall be, block by block."""
    want = (packed if gather else pool).clone()
    for index, block in enumerate(ids):
        if gather:
            want[index] = pool[block]
        else:
            want[block] = packed[index]
    return want


def gathered(run: Callable[..., Any], pool: Tensor, ids: list[int], out: Tensor) -> Tensor:
    after: Tensor = run("gather_blocks", pool, torch.tensor(ids, dtype=torch.int64), out)[1][2]
    return after


def scattered(run: Callable[..., Any], source: Tensor, pool: Tensor, ids: list[int]) -> Tensor:
    after: Tensor = run("scatter_blocks", source, pool, torch.tensor(ids, dtype=torch.int64))[1][1]
    return after


def run_here(op: str, *args: Any) -> tuple[None, tuple[Any, ...]]:
    {"gather_blocks": gather_blocks, "scatter_blocks": scatter_blocks}[op](*args)
    return None, args


def check_both(run: Callable[..., Any], block: tuple[int, ...], ids: list[int], dtype: torch.dtype) -> None:
    pool, packed = filled(5, block, dtype), filled(len(ids), block, dtype, seed=1)
    want = by_hand(pool, ids, packed, gather=True), by_hand(pool, ids, packed, gather=False)
    assert same_bits(bits(gathered(run, pool, ids, packed.clone())), bits(want[0]))
    assert same_bits(bits(scattered(run, packed, pool, ids)), bits(want[1]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_without_a_gpu_every_bit_is_copied(ids: list[int], dtype: torch.dtype) -> None:
    check_both(run_here, (2, 3, 5), ids, dtype)


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_kernel_copies_every_bit(interpreter: Interpreter, block: tuple[int, ...], ids: list[int]) -> None:
    check_both(interpreter.run_and_return_args, block, ids, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64], ids=str)
def test_kernel_takes_any_dtype(interpreter: Interpreter, dtype: torch.dtype) -> None:
    check_both(interpreter.run_and_return_args, (2, 3, 5), IDS["all"], dtype)


def test_kernel_takes_a_buffer_at_an_odd_address(interpreter: Interpreter) -> None:
    pool, room = filled(5, (4, 8), torch.bfloat16), filled(4, (4, 8), torch.bfloat16, seed=1)
    out = room.view(-1)[1:][: 2 * 32].view(2, 4, 8)
    got = gathered(interpreter.run_and_return_args, pool, [4, 1], out)
    assert same_bits(got, pool[[4, 1]])
    whole = got.as_strided((room.numel(),), (1,), storage_offset=0)
    assert same_bits(whole[:1], room.view(-1)[:1])
    assert same_bits(whole[65:], room.view(-1)[65:])


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "past_the_end": ({"block_ids": torch.tensor([0, 5])}, "block_ids lie in 0–5; accepted: 0 to 4"),
    "negative": ({"block_ids": torch.tensor([0, -1])}, "block_ids lie in -1–0; accepted: 0 to 4"),
    "ids_int32": ({"block_ids": torch.tensor([0, 1]).int()}, "block_ids has dtype torch.int32"),
    "fewer_ids": ({"block_ids": torch.tensor([0])}, r"has shape \[2, 3, 4\]; accepted: \[1, 3, 4\]"),
    "block_shape": ({"packed": torch.zeros(2, 4, 3)}, r"has shape \[2, 4, 3\]; accepted: \[2, 3, 4\]"),
    "dtype": ({"packed": torch.zeros(2, 3, 4).half()}, "has dtype torch.float16; accepted: torch.float32"),
    "strided": ({"packed": torch.zeros(2, 4, 3).mT}, "has strides .* accepted: a contiguous tensor"),
    "pool_strided": ({"pool": torch.zeros(5, 2, 3, 4)[:, 0]}, "pool has strides"),
    "device": ({"packed": torch.zeros(2, 3, 4, device="meta")}, "is on meta; accepted: cpu"),
}


@pytest.mark.parametrize("bad", BAD_ARGUMENTS)
def test_refuses(bad: str) -> None:
    changed, message = BAD_ARGUMENTS[bad]
    good = {"pool": torch.zeros(5, 3, 4), "block_ids": torch.tensor([0, 1]), "packed": torch.zeros(2, 3, 4)}
    given = good | changed
    with pytest.raises(ValueError, match=message):
        gather_blocks(given["pool"], given["block_ids"], given["packed"])
    with pytest.raises(ValueError, match=message):
        scatter_blocks(given["packed"], given["pool"], given["block_ids"])


@pytest.mark.gpu
def test_compiled_kernel_copies_blocks_beyond_32_bit_offsets() -> None:
    pool = torch.empty(2100, 64, 2, 16, 8, 128, dtype=torch.int16, device="cuda")  # 2.2 · 2³¹ elements
    ids = torch.tensor([2099, 3, 2050], device="cuda")
    source = torch.randint(-(2**15), 2**15, (3, *pool.shape[1:]), dtype=torch.int16, device="cuda")
    scatter_blocks(source, pool, ids)
    assert torch.equal(pool[ids], source)
    out = torch.empty_like(source)
    gather_blocks(pool, ids, out)
    assert torch.equal(out, source)
