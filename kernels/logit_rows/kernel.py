"""Loads the logits of a row, edited for its draw.

    x = logit + edit                           edits are found by bisection
    x = x · repetition where x < 0, x / repetition elsewhere, if prompt or output hold the token
    x = x - presence, if the output holds it, - frequency · occurrences in the output

In float32, rounded at each operation, as torch does it. Keskar et al., "CTRL", 2019, for repetition.
"""

import torch

from kernels.language import tl, triton
from kernels.logit_rows.arguments import Way
from kernels.selection.kernel import LOG2_E

TEMPERATURE = tl.constexpr(int(Way.TEMPERATURE))
REPETITION = tl.constexpr(int(Way.REPETITION))
PRESENCE = tl.constexpr(int(Way.PRESENCE))
FREQUENCY = tl.constexpr(int(Way.FREQUENCY))
OTHERS = tl.constexpr(int(Way.OTHERS))
LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


@triton.jit
def load_way(ways_ptr, num_rows, row, which: tl.constexpr):
    return tl.load(ways_ptr + which * num_rows + row)


@triton.jit
def load_scale(ways_ptr, num_rows, row):
    """Return log2(e) / temperature; 0 if the draw is greedy."""
    temperature = load_way(ways_ptr, num_rows, row, TEMPERATURE)
    inverse = LOG2_E / tl.where(temperature > 0, temperature, 1.0)
    return tl.where(temperature > 0, tl.minimum(inverse, LARGEST), 0.0).to(tl.float32)


@triton.jit
def is_penalised(ways_ptr, num_rows, row):
    is_repetition = load_way(ways_ptr, num_rows, row, REPETITION) != 1.0
    is_presence = load_way(ways_ptr, num_rows, row, PRESENCE) != 0.0
    return is_repetition | is_presence | (load_way(ways_ptr, num_rows, row, FREQUENCY) != 0.0)


@triton.jit
def _edit(x, token, tokens_ptr, values_ptr, begin, end, others):
    """Add the edits from `begin` to `end` to their tokens, and `others` to all other tokens."""
    low = tl.zeros_like(token) + begin
    high = tl.zeros_like(token) + end
    size = end - begin
    while size > 0:
        middle = (low + high) // 2
        is_open = low < high
        is_left = is_open & (tl.load(tokens_ptr + middle, mask=is_open, other=0) < token)
        low = tl.where(is_left, middle + 1, low)
        high = tl.where(is_open & (is_left == 0), middle, high)
        size = size // 2
    is_found = low < end
    is_found &= tl.load(tokens_ptr + low, mask=is_found, other=-1) == token
    return x + tl.where(is_found, tl.load(values_ptr + low, mask=is_found, other=0.0), others)


@triton.jit
def _penalise(x, token, real, ways_ptr, in_prompt_ptr, counts_ptr, num_rows, row):
    """Apply penalties; `in_prompt_ptr` and `counts_ptr` point to the row."""
    if is_penalised(ways_ptr, num_rows, row):
        # A penalty beyond float32 is as large as one can be.
        repetition = tl.minimum(load_way(ways_ptr, num_rows, row, REPETITION), LARGEST).to(tl.float32)
        presence = load_way(ways_ptr, num_rows, row, PRESENCE).to(tl.float32)
        frequency = load_way(ways_ptr, num_rows, row, FREQUENCY).to(tl.float32)
        count = tl.load(counts_ptr + token, mask=real, other=0)
        is_seen = (tl.load(in_prompt_ptr + token, mask=real, other=0) != 0) | (count > 0)
        repeated = tl.where(x < 0, x * repetition, tl.div_rn(x, repetition))
        x = tl.where(is_seen, repeated, x)
        x -= tl.where(count > 0, presence, 0.0)
        x -= frequency * count.to(tl.float32)
        x = tl.minimum(x, LARGEST)
    return x


@triton.jit
def load_logits(
    logits_ptr,
    stride,
    ways_ptr,
    edit_tokens_ptr,  # or None, with the other two of edits
    edit_values_ptr,
    offsets_ptr,
    in_prompt_ptr,  # or None, with counts_ptr
    counts_ptr,
    num_rows,
    vocab,
    row,  # int64
    token,  # int32
    real,
):
    """Return the model's own logits, and the edited ones x; float32, -inf where not `real`."""
    logit = tl.load(logits_ptr + row * stride + token, mask=real, other=float("-inf")).to(tl.float32)
    x = logit
    if edit_tokens_ptr is not None:
        begin = tl.load(offsets_ptr + row)
        end = tl.load(offsets_ptr + row + 1)
        others = load_way(ways_ptr, num_rows, row, OTHERS).to(tl.float32)
        x = _edit(x, token, edit_tokens_ptr, edit_values_ptr, begin, end, others)
    if counts_ptr is not None:
        own = row * vocab
        x = _penalise(x, token, real, ways_ptr, in_prompt_ptr + own, counts_ptr + own, num_rows, row)
    return logit, x
