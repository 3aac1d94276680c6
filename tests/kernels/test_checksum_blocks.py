from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.checksum_blocks import checksum_blocks
from tests.kernels.interpreter import Interpreter
from tests.kernels.test_copy_blocks import filled

MASK_64 = 2**64 - 1
BLOCKS = {"a word": (2,), "words": (2, 3, 16), "half a tile": (3, 100), "pieces": (2, 9000)}


def by_hand(block: bytes) -> int:
    """The definition, word by word, in integers of any size."""
    sums = [0, 0]
    for place in range(len(block) // 4):
        word = int.from_bytes(block[4 * place : 4 * place + 4], "little")
        for lane in (0, 1):
            sums[lane] += _split_mix(2 * place + lane) * word
    low, high = (total & MASK_64 for total in sums)
    return (high >> 32) << 32 | low >> 32


def _split_mix(place: int) -> int:
    mixed = (place + 1) * 0x9E3779B97F4A7C15 & MASK_64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK_64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK_64
    return mixed ^ mixed >> 31


def bytes_of(block: Tensor) -> bytes:
    return block.reshape(-1).view(torch.uint8).numpy().tobytes()


def as_unsigned(checksums: Tensor) -> list[int]:
    return [checksum & MASK_64 for checksum in checksums.tolist()]


def test_the_first_multipliers_are_those_of_splitmix64() -> None:
    assert [_split_mix(place) for place in (0, 1)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


@pytest.mark.parametrize("run", [checksum_blocks, None], ids=["here", "interpreted"])
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_checksums_are_what_the_definition_says(
    interpreter: Interpreter, block: tuple[int, ...], run: Callable[..., Tensor] | None
) -> None:
    pool, ids = filled(5, block, torch.bfloat16), torch.tensor([4, 0, 2])
    take: Callable[..., Any] = run or (lambda *args: interpreter.run("checksum_blocks", *args))
    expected = [by_hand(bytes_of(pool[place])) for place in ids]
    assert as_unsigned(take(pool, ids)) == expected
    assert len(set(expected)) == 3


def test_no_blocks_have_no_checksums(interpreter: Interpreter) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert checksum_blocks(torch.zeros(3, 4), none).shape == (0,)
    assert interpreter.run("checksum_blocks", torch.zeros(3, 4), none).shape == (0,)


@given(
    block=st.binary(min_size=8, max_size=256).map(lambda given: given[: len(given) // 4 * 4]),
    data=st.data(),
)
def test_a_damaged_block_has_another_checksum(block: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(block) - 1), label="bit")
    flipped = bytearray(block)
    flipped[bit // 8] ^= 1 << bit % 8
    turned = block[4:] + block[:4]
    pool = torch.stack(
        [torch.frombuffer(bytearray(entry), dtype=torch.uint8) for entry in (block, flipped, turned)]
    )
    whole, damaged, moved = as_unsigned(checksum_blocks(pool, torch.arange(3)))
    assert damaged != whole
    assert (moved == whole) == (turned == block)


@pytest.mark.parametrize(
    ("pool", "ids", "message"),
    [
        (torch.zeros(5, 4), torch.tensor([0, 5]), "block_ids lie in 0–5; accepted: 0 to 4"),
        (torch.zeros(5, 4), torch.tensor([0]).int(), "block_ids has dtype torch.int32"),
        (torch.zeros(5, 2, 4)[:, 0], torch.tensor([0]), "pool has strides"),
        (
            torch.zeros(5, 3).half(),
            torch.tensor([0]),
            "pool has 6 bytes; accepted: a multiple of 4",
        ),
    ],
)
def test_refuses(pool: Tensor, ids: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checksum_blocks(pool, ids)


@pytest.mark.gpu
def test_compiled_kernel_is_right_beyond_32_bit_offsets() -> None:
    pool = torch.empty(2100, 64, 2, 16, 8, 128, dtype=torch.int16, device="cuda")  # 2.2 · 2³¹ elements
    ids = torch.tensor([2099, 3, 2050], device="cuda")
    pool[ids] = torch.randint(-(2**15), 2**15, (3, *pool.shape[1:]), dtype=torch.int16, device="cuda")
    expected = checksum_blocks(pool[ids].cpu(), torch.arange(3))
    assert torch.equal(checksum_blocks(pool, ids).cpu(), expected)
