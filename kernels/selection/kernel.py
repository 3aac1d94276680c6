"""Selection without sorting, by sums that do not depend on their order.

Softmax weights are whole numbers here: 2^((x - top) · scale) in units of 2^-44. Sums of whole numbers are
exact, so a row's result does not depend on how many programs share it, on the order in which they finish, or
on the other rows of the batch; float sums, atomic or not, need one fixed tree for that. The weight of a
row's top is 2^44, so rows of up to 2^18 tokens stay below 2^63. Truncation loses less than 2^-26 of the top's
weight in a whole row, where a float32 exponential is off by some 2^-22 of each.

A radix selection (Alabi et al., "Fast k-Selection Algorithms for Graphics Processing Units", 2012) with sums
in place of counts finds top-k's and top-p's thresholds and the drawn token: each is the largest key v at
which the amounts of items with keys ≥ v reach a target. A pass over the items finds two bits of v.
"""

from kernels.language import tl, triton

MAX_ITEMS = 1 << 18
LOG2_E = tl.constexpr(1.4426950408889634)
ONE = tl.constexpr(2.0**44)
"""The weight of a row's top."""

# Modes of `select`: what an item's amount and key are.
COUNT = tl.constexpr(0)  # one each, by logit
MASS = tl.constexpr(1)  # its weight, by logit
TOKEN = tl.constexpr(2)  # its weight, by token id: the lowest id has the highest key
LOWEST_KEY = tl.constexpr(-(1 << 31))
LOWEST_TOKEN_KEY = tl.constexpr(-(1 << 18))


@triton.jit
def order_key(x):
    """Return int32 numbers in the order of the float32 numbers x; both zeros have the same."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def weigh(x, top, scale):
    """Return int64 2^((x - top) · scale) in units of 2^-44, rounded down; `top` is finite and at least x."""
    return (tl.exp2((x - top) * scale) * ONE).to(tl.int64)


@triton.jit
def _amounts(
    x_ptr, token_ptr, begin, count, top, scale, floor, least, MODE: tl.constexpr, BLOCK: tl.constexpr
):
    """Load keys and amounts [BLOCK] of the items from `begin`; arguments as for `select`."""
    place = begin + tl.arange(0, BLOCK)
    real = place < count
    x = tl.load(x_ptr + place, mask=real, other=float("-inf"))
    key = order_key(x)
    counts = real & (key >= floor)
    if MODE == COUNT:
        amount = counts.to(tl.int64)
    else:
        amount = weigh(x, top, scale)
        amount = tl.where(counts & (amount >= least), amount, 0)
    if MODE == TOKEN:
        key = -1 - tl.load(token_ptr + place, mask=real, other=0)
    return key, amount


@triton.jit
def add_up(x_ptr, token_ptr, count, top, scale, floor, least, MODE: tl.constexpr, BLOCK: tl.constexpr):
    """Sum the amounts of all items; arguments as for `select`."""
    total = tl.zeros([BLOCK], tl.int64)
    for begin in range(0, count, BLOCK):
        _, amount = _amounts(x_ptr, token_ptr, begin, count, top, scale, floor, least, MODE, BLOCK)
        total += amount
    return tl.sum(total, axis=0)


@triton.jit
def select(
    x_ptr,  # [count] float32
    token_ptr,  # [count] int32, read where MODE is TOKEN
    count,
    top,
    scale,
    floor,  # items whose logits have lower keys have no amount
    least,  # nor have those of a weight below this, where MODE is not COUNT
    target,  # int64
    MODE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the largest key v, int64, such that amounts of items with keys ≥ v reach `target`.

    It is the lowest possible key if none does.
    """
    LOWEST: tl.constexpr = LOWEST_TOKEN_KEY if MODE == TOKEN else LOWEST_KEY
    BITS: tl.constexpr = 18 if MODE == TOKEN else 32
    digits = tl.arange(0, 4).to(tl.int64)
    best = tl.full([], LOWEST, tl.int64)
    for index in range(BITS // 2):
        trials = best + (digits << (BITS - 2 - 2 * index))
        reached = tl.zeros([4], tl.int64)
        for begin in range(0, count, BLOCK):
            key, amount = _amounts(x_ptr, token_ptr, begin, count, top, scale, floor, least, MODE, BLOCK)
            is_in = key.to(tl.int64)[:, None] >= trials[None, :]
            reached += tl.sum(tl.where(is_in, amount[:, None], 0), axis=0)
        best = tl.max(tl.where(reached >= target, trials, best), axis=0)
    return best
