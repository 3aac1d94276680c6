"""The next token of every row of logits [num_rows, vocab], without a sort and without float sums.

    w = 2^((x - max x) · log2(e) / temperature)          x: logits after edits and penalties
    token = the first t with Σ_{n ≤ t} w_n [n is kept] > noise · Σ w_n [n is kept]

Filters apply in this order. Top-k keeps every x that is not below the k-th largest. Top-p keeps x down to the
smallest such that all larger ones have less than p of the weight left. Min-p keeps weights of at least min_p.
Logits are float32, weights whole numbers (`kernels/selection`), so every sum is exact and a row's token does
not depend on the other rows.

There are two launches. `_scan_kernel` divides each row's vocabulary among programs: each reads TILE logits
and writes their largest, their weight, and the largest of each GROUP. `_draw_kernel` has one program for each
row. Without a filter it finds the token's tile by the tiles' weights, and the token in it. With a filter it
first considers the groups' largest logits only: a threshold that they reach, the row reaches as well. So few
groups have to be read again, and their few candidates, among which thresholds and token are selected, fit
into a cache. If nearly every token is a candidate, one program reads the row some forty times.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.language import tl, triton
from kernels.launch import can_launch, next_power_of_2
from kernels.logit_rows.arguments import Edits, Seen, Way, check_arguments
from kernels.logit_rows.kernel import is_penalised, load_logits, load_scale, load_way
from kernels.sample_rows.reference import sample_rows_reference
from kernels.selection.kernel import (
    COUNT,
    LOG2_E,
    LOWEST_KEY,
    MASS,
    MAX_ITEMS,
    ONE,
    TOKEN,
    add_up,
    order_key,
    select,
    weigh,
)

# 32 logits for each of 128 threads: a row of 128k logits occupies 32 SMs, and a batch all of them.
TILE = 4096
SCAN_WARPS = 4
# Of a row of 128k logits 4096 largest ones stay, which two passes of a program read. Larger groups would hide
# more of each other's candidates, smaller ones take longer to look through.
GROUP = 32
BLOCK = 2048  # items of a pass over candidates: eight for each of 256 threads
DRAW_WARPS = 8
CANDIDATE_BYTES = 8
MAX_SCRATCH_BYTES = (
    256 << 20
)  # there is room for all of a row to be candidates; more rows take another launch

TOP_K = tl.constexpr(int(Way.TOP_K))
TOP_P = tl.constexpr(int(Way.TOP_P))
MIN_P = tl.constexpr(int(Way.MIN_P))
NOISE = tl.constexpr(int(Way.NOISE))
NO_TOKEN = tl.constexpr(MAX_ITEMS)


@triton.jit(do_not_specialize=["num_rows"])
def _scan_kernel(
    logits_ptr,
    stride,
    ways_ptr,
    edit_tokens_ptr,
    edit_values_ptr,
    offsets_ptr,
    in_prompt_ptr,
    counts_ptr,
    tops_ptr,  # [num_rows, num_tiles] float32: the largest x
    firsts_ptr,  # int32: the first token that has it
    masses_ptr,  # int64: weights, of which the tile's top has 2^44
    own_tops_ptr,  # float32: the largest of the model's own logits, inf where one is NaN
    own_masses_ptr,  # int64, or None: weights of the model's own logits at temperature 1
    group_tops_ptr,  # [num_rows, num_groups] float32
    num_rows,
    vocab,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
):
    tile = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    part = row * tl.num_programs(0) + tile
    token = tile * TILE + tl.arange(0, TILE)
    real = token < vocab
    logit, x = load_logits(
        logits_ptr, stride, ways_ptr, edit_tokens_ptr, edit_values_ptr, offsets_ptr, in_prompt_ptr,
        counts_ptr, num_rows, vocab, row, token, real,
    )  # fmt: skip
    has_nan = tl.sum((logit <= float("inf")).to(tl.int32), axis=0) < TILE
    own_top = tl.max(logit, axis=0)
    tl.store(own_tops_ptr + part, tl.where(has_nan, float("inf"), own_top))
    if own_masses_ptr is not None:
        own_top = tl.where(own_top == float("-inf"), 0.0, own_top)
        tl.store(own_masses_ptr + part, tl.sum(weigh(logit, own_top, LOG2_E), axis=0))

    group_tops = tl.max(tl.reshape(x, [TILE // GROUP, GROUP]), axis=1)
    group = tile * (TILE // GROUP) + tl.arange(0, TILE // GROUP)
    num_groups = tl.cdiv(vocab, GROUP)
    tl.store(group_tops_ptr + row * num_groups + group, group_tops, mask=group < num_groups)
    top = tl.max(group_tops, axis=0)
    tl.store(tops_ptr + part, top)
    tl.store(firsts_ptr + part, tl.min(tl.where(x == top, token, NO_TOKEN), axis=0))
    scale = load_scale(ways_ptr, num_rows, row)
    if scale > 0:
        # Of a tile of banned tokens: -inf - -inf would be NaN.
        top = tl.where(top == float("-inf"), 0.0, top)
        tl.store(masses_ptr + part, tl.sum(weigh(x, top, scale), axis=0))


@triton.jit
def _in_units_of(tops, masses, top, scale):
    """Convert masses [n] of tiles from units of their own top's weight to those of `top`'s."""
    return (masses.to(tl.float64) * tl.exp2((tops - top) * scale).to(tl.float64)).to(tl.int64)


@triton.jit
def _bound(group_tops_ptr, num_groups, vocab, top, scale, mass, top_k, top_p, min_p, BLOCK: tl.constexpr):
    """Return a key such that the filters need no token with a lower one, neither to keep nor to weigh."""
    lowest = tl.full([], LOWEST_KEY, tl.int64)
    if top_k > 0:
        # All of these have to be weighed before top-p can cut any of them.
        bound = select(group_tops_ptr, None, num_groups, top, scale, lowest, 0, top_k, COUNT, BLOCK)
    else:
        bound = lowest
        least = min_p
        if top_p < 1:
            target = tl.ceil(top_p * mass.to(tl.float64)).to(tl.int64)
            bound = select(group_tops_ptr, None, num_groups, top, scale, lowest, 0, target, MASS, BLOCK)
            # All that weigh less than this have not 1 - p together.
            least = tl.maximum(least, (1 - top_p) * (mass.to(tl.float64) / ONE / vocab))
        # The margins cover the rounding of float32.
        below = tl.log2((least * 0.999).to(tl.float32)) / scale
        below = top + below - (tl.abs(top) + tl.abs(below)) * 1e-5
        bound = tl.maximum(bound, order_key(below).to(tl.int64))
    return bound


@triton.jit
def _gather(
    logits_ptr, stride, ways_ptr, edit_tokens_ptr, edit_values_ptr, offsets_ptr, in_prompt_ptr, counts_ptr,
    num_rows, vocab, row, group_tops_ptr, groups_ptr, x_ptr, token_ptr, bound,
    GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write x and token of all keys from `bound` up, in the vocabulary's order; return their number."""
    num_groups = tl.cdiv(vocab, GROUP)
    num_found = 0
    for begin in range(0, num_groups, BLOCK):
        group = begin + tl.arange(0, BLOCK)
        tops = tl.load(group_tops_ptr + group, mask=group < num_groups, other=float("-inf"))
        is_found = (group < num_groups) & (order_key(tops) >= bound)
        place = num_found + tl.cumsum(is_found.to(tl.int32), axis=0) - 1
        tl.store(groups_ptr + place, group, mask=is_found)
        num_found += tl.sum(is_found.to(tl.int32), axis=0)
    tl.debug_barrier()  # other threads read what these have written
    count = 0
    for begin in range(0, num_found * GROUP, BLOCK):
        item = begin + tl.arange(0, BLOCK)
        real = item < num_found * GROUP
        token = tl.load(groups_ptr + item // GROUP, mask=real, other=0) * GROUP + item % GROUP
        real &= token < vocab
        _, x = load_logits(
            logits_ptr, stride, ways_ptr, edit_tokens_ptr, edit_values_ptr, offsets_ptr, in_prompt_ptr,
            counts_ptr, num_rows, vocab, row, token, real,
        )  # fmt: skip
        is_kept = real & (order_key(x) >= bound)
        place = count + tl.cumsum(is_kept.to(tl.int32), axis=0) - 1
        tl.store(x_ptr + place, x, mask=is_kept)
        tl.store(token_ptr + place, token, mask=is_kept)
        count += tl.sum(is_kept.to(tl.int32), axis=0)
    tl.debug_barrier()
    return count


@triton.jit(do_not_specialize=["num_rows"])
def _draw_kernel(
    logits_ptr,
    stride,
    ways_ptr,
    edit_tokens_ptr,
    edit_values_ptr,
    offsets_ptr,
    in_prompt_ptr,
    counts_ptr,
    tops_ptr,
    firsts_ptr,
    masses_ptr,
    own_tops_ptr,
    own_masses_ptr,
    group_tops_ptr,
    groups_ptr,  # [num_rows, num_groups] int32
    x_ptr,  # [num_rows, vocab] float32: candidates
    candidates_ptr,  # [num_rows, vocab] int32
    out_ptr,  # [num_rows] int64
    is_broken_ptr,  # [num_rows] bool
    log_totals_ptr,  # [num_rows] float64, or None
    num_rows,
    vocab,
    num_tiles,
    TILES_PAD: tl.constexpr,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tiles = tl.arange(0, TILES_PAD)
    is_tile = tiles < num_tiles
    part = row * num_tiles + tiles
    own_tops = tl.load(own_tops_ptr + part, mask=is_tile, other=float("-inf"))
    own_top = tl.max(own_tops, axis=0)
    is_broken = tl.abs(own_top) == float("inf")
    tl.store(is_broken_ptr + row, is_broken)
    if log_totals_ptr is not None:
        own_masses = tl.load(own_masses_ptr + part, mask=is_tile, other=0)
        own_mass = tl.sum(_in_units_of(own_tops, own_masses, own_top, LOG2_E), axis=0)
        tl.store(log_totals_ptr + row, own_top.to(tl.float64) + tl.log(own_mass.to(tl.float64) / ONE))

    tops = tl.load(tops_ptr + part, mask=is_tile, other=float("-inf"))
    top = tl.max(tops, axis=0)
    firsts = tl.load(firsts_ptr + part, mask=is_tile, other=NO_TOKEN)
    # Of a row that is broken, or whose tokens are all banned, this is some token.
    chosen = tl.minimum(tl.min(tl.where(tops == top, firsts, NO_TOKEN), axis=0), vocab - 1)
    scale = load_scale(ways_ptr, num_rows, row)
    if (scale > 0) & (is_broken == 0) & (top > float("-inf")):
        noise = load_way(ways_ptr, num_rows, row, NOISE)
        top_k = load_way(ways_ptr, num_rows, row, TOP_K).to(tl.int64)
        top_k = tl.where(top_k < vocab, top_k, 0)
        top_p = load_way(ways_ptr, num_rows, row, TOP_P)
        min_p = load_way(ways_ptr, num_rows, row, MIN_P)
        tile_masses = tl.load(masses_ptr + part, mask=is_tile, other=0)
        masses = _in_units_of(tops, tile_masses, top, scale)
        mass = tl.sum(masses, axis=0)
        if (top_k > 0) | (top_p < 1) | (min_p > 0):
            num_groups = tl.cdiv(vocab, GROUP)
            own_groups_ptr = group_tops_ptr + row * num_groups
            bound = _bound(own_groups_ptr, num_groups, vocab, top, scale, mass, top_k, top_p, min_p, BLOCK)
            xs = x_ptr + row * vocab
            tokens = candidates_ptr + row * vocab
            count = _gather(
                logits_ptr, stride, ways_ptr, edit_tokens_ptr, edit_values_ptr, offsets_ptr, in_prompt_ptr,
                counts_ptr, num_rows, vocab, row, own_groups_ptr, groups_ptr + row * num_groups, xs, tokens,
                bound, GROUP, BLOCK,
            )  # fmt: skip
            floor = bound
            if top_k > 0:
                floor = select(xs, tokens, count, top, scale, floor, 0, top_k, COUNT, BLOCK)
                mass = add_up(xs, tokens, count, top, scale, floor, 0, MASS, BLOCK)
            if top_p < 1:
                target = tl.ceil(top_p * mass.to(tl.float64)).to(tl.int64)
                by_mass = select(xs, tokens, count, top, scale, floor, 0, target, MASS, BLOCK)
                floor = tl.maximum(floor, by_mass)
            least = (min_p * ONE).to(tl.int64)
            mass = add_up(xs, tokens, count, top, scale, floor, least, MASS, BLOCK)
            target = tl.minimum((noise * mass.to(tl.float64)).to(tl.int64), mass - 1)
            key = select(xs, tokens, count, top, scale, floor, least, target + 1, TOKEN, BLOCK)
            chosen = (-1 - key).to(tl.int32)
        else:
            target = tl.minimum((noise * mass.to(tl.float64)).to(tl.int64), mass - 1)
            upto = tl.cumsum(masses, axis=0)
            tile = tl.sum((upto <= target).to(tl.int32), axis=0)
            is_own = tiles == tile
            share = tl.sum(tl.where(is_own, masses, 0), axis=0)
            behind = target - (tl.sum(tl.where(is_own, upto, 0), axis=0) - share)
            tile_mass = tl.sum(tl.where(is_own, tile_masses, 0), axis=0)
            tile_top = tl.max(tl.where(is_own, tops, float("-inf")), axis=0)
            # From the row's units to the tile's, in which its weights add up to `tile_mass` exactly.
            behind = (behind.to(tl.float64) / share.to(tl.float64) * tile_mass.to(tl.float64)).to(tl.int64)
            behind = tl.minimum(behind, tile_mass - 1)
            token = tile * TILE + tl.arange(0, TILE)
            _, x = load_logits(
                logits_ptr, stride, ways_ptr, edit_tokens_ptr, edit_values_ptr, offsets_ptr, in_prompt_ptr,
                counts_ptr, num_rows, vocab, row, token, token < vocab,
            )  # fmt: skip
            upto = tl.cumsum(weigh(x, tile_top, scale), axis=0)
            chosen = tl.minimum(tile * TILE + tl.sum((upto <= behind).to(tl.int32), axis=0), vocab - 1)
    tl.store(out_ptr + row, chosen.to(tl.int64))
    if counts_ptr is not None:
        seen = counts_ptr + row * vocab + chosen
        counts = (is_broken == 0) & is_penalised(ways_ptr, num_rows, row)
        tl.store(seen, tl.load(seen, mask=counts, other=0) + 1, mask=counts)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The drawn tokens; all columns are on the device."""

    token_ids: Tensor
    """[num_rows] int64; in the vocabulary, but meaningless where a row is broken"""
    is_broken: Tensor
    """[num_rows] bool; the row's largest logit is NaN or infinite, so there is nothing to draw from"""
    log_totals: Tensor | None
    """[num_rows] float64: log Σ exp of the model's own logits; None unless requested"""


def sample_rows(
    logits: Tensor,
    ways: Tensor,
    edits: Edits | None = None,
    seen: Seen | None = None,
    *,
    with_log_totals: bool = False,
) -> Tokens:
    """Draw a token of each row of `logits` [num_rows, vocab], by its column of `ways`.

    Vocabularies hold up to 2^18 tokens. Counts of rows with penalties are updated; without `seen`
    no row may have any. Where noise or a threshold's share comes within rounding of a boundary, some 2^-19 of
    the row's weight, the token may be the one beyond. float64 is always computed by the reference.
    """
    check_arguments(logits, ways, edits, seen)
    if logits.dtype == torch.float64 or not can_launch(_scan_kernel, logits.device):
        return Tokens(*sample_rows_reference(logits, ways, edits, seen, with_log_totals=with_log_totals))
    num_rows, vocab = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    is_broken = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    log_totals = torch.empty(num_rows if with_log_totals else 0, dtype=torch.float64, device=logits.device)
    at_once = max(1, MAX_SCRATCH_BYTES // (CANDIDATE_BYTES * vocab))
    for begin in range(0, num_rows, at_once):
        rows = slice(begin, begin + at_once)
        _launch(
            logits[rows],
            ways[:, rows].contiguous(),
            None if edits is None else Edits(edits.tokens, edits.values, edits.offsets[begin:]),
            None if seen is None else Seen(seen.in_prompt[rows], seen.counts[rows]),
            Tokens(token_ids[rows], is_broken[rows], log_totals[rows] if with_log_totals else None),
        )
    return Tokens(token_ids, is_broken, log_totals if with_log_totals else None)


def _launch(logits: Tensor, ways: Tensor, edits: Edits | None, seen: Seen | None, tokens: Tokens) -> None:
    num_rows, vocab = logits.shape
    num_tiles, num_groups = triton.cdiv(vocab, TILE), triton.cdiv(vocab, GROUP)

    def scratch(dtype: torch.dtype, width: int) -> Tensor:
        return torch.empty((num_rows, width), dtype=dtype, device=logits.device)

    group_tops = scratch(torch.float32, num_groups)
    sources = (
        logits,
        logits.stride(0),
        ways,
        None if edits is None else edits.tokens,
        None if edits is None else edits.values,
        None if edits is None else edits.offsets,
        None if seen is None else seen.in_prompt,
        None if seen is None else seen.counts,
    )
    tiles = (
        scratch(torch.float32, num_tiles),
        scratch(torch.int32, num_tiles),
        scratch(torch.int64, num_tiles),
        scratch(torch.float32, num_tiles),
        None if tokens.log_totals is None else scratch(torch.int64, num_tiles),
    )
    # Without fused multiplications both kernels find the same x, and the one that the reference means.
    _scan_kernel[(num_tiles, num_rows)](
        *sources,
        *tiles,
        group_tops,
        num_rows,
        vocab,
        TILE=TILE,
        GROUP=GROUP,
        num_warps=SCAN_WARPS,
        enable_fp_fusion=False,
    )
    _draw_kernel[(num_rows,)](
        *sources,
        *tiles,
        group_tops,
        scratch(torch.int32, num_groups),
        scratch(torch.float32, vocab),
        scratch(torch.int32, vocab),
        tokens.token_ids,
        tokens.is_broken,
        tokens.log_totals,
        num_rows,
        vocab,
        num_tiles,
        TILES_PAD=next_power_of_2(num_tiles),
        TILE=TILE,
        GROUP=GROUP,
        BLOCK=BLOCK,
        num_warps=DRAW_WARPS,
        enable_fp_fusion=False,
    )
