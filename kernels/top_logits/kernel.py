"""The `num` largest of each row of logits [num_rows, vocab]; of equal ones the lower token comes first.

A logit and its token form one whole number, ordered by the logit and then against the token. No two are
equal, so the largest do not depend on how a row is cut. Each program extracts the `num` largest of its tile
one by one; `torch.topk` then reads `num` numbers of each tile instead of a vocabulary. `torch.topk` alone
would need the logits in wider numbers, or choose among equal logits arbitrarily: in 16 bits many are equal.
"""

import torch
from torch import Tensor

from kernels.language import tl, triton
from kernels.launch import FLOAT_DTYPES, can_launch, check_tensor, next_power_of_2
from kernels.selection.kernel import order_key
from kernels.top_logits.reference import top_logits_reference

TILE = 4096  # as large as 128 threads hold in registers: each pass costs a maximum over the whole program
NUM_WARPS = 4
LAST = tl.constexpr((1 << 31) - 1)
NOTHING = tl.constexpr(-(1 << 63))


@triton.jit
def _top_logits_kernel(
    logits_ptr,
    stride,
    out_ptr,  # [num_rows, num_tiles, NUM] int64
    vocab,
    NUM: tl.constexpr,
    TILE: tl.constexpr,
):
    tile = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    token = tile * TILE + tl.arange(0, TILE)
    real = token < vocab
    x = tl.load(logits_ptr + row * stride + token, mask=real, other=0.0).to(tl.float32)
    number = (order_key(x).to(tl.int64) << 32) + (LAST - token)
    number = tl.where(real, number, NOTHING)
    out = out_ptr + (row * tl.num_programs(0) + tile) * NUM
    for place in range(NUM):
        largest = tl.max(number, axis=0)
        tl.store(out + place, largest)
        number = tl.where(number == largest, NOTHING, number)


def top_logits(logits: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Return float32 values and int64 tokens, both [num_rows, num]; `num` is 1 to the vocabulary's size.

    float64 is always computed by the reference, whose values stay float64.
    """
    check_tensor("logits", logits, ("num_rows", "vocab"), FLOAT_DTYPES)
    num_rows, vocab = logits.shape
    if not 1 <= num <= vocab:
        raise ValueError(f"num is {num}; accepted: 1 to {vocab}, the vocabulary")
    if logits.dtype == torch.float64 or not can_launch(_top_logits_kernel, logits.device):
        return top_logits_reference(logits, num)
    num_tiles = triton.cdiv(vocab, TILE)
    # A power of two: otherwise each new number would be compiled while a request waits.
    width = next_power_of_2(num)
    numbers = torch.empty((num_rows, num_tiles * width), dtype=torch.int64, device=logits.device)
    if num_rows:
        _top_logits_kernel[(num_tiles, num_rows)](
            logits, logits.stride(0), numbers, vocab, NUM=width, TILE=TILE, num_warps=NUM_WARPS
        )
    largest = torch.topk(numbers, num, dim=-1).values
    key = (largest >> 32).int()
    values = (key ^ ((key >> 31) & LAST.value)).view(torch.float32)
    return values, LAST.value - (largest & 0xFFFFFFFF)
