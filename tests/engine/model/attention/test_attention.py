"""Attention over the pool against a dense softmax, for any ragged batch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.kv.kv_pool import BlockLayout, KVPool
from engine.kv.rows import PoolRows
from engine.model.attention.attention import (
    MAX_PADDING,
    CpuAttention,
    KernelAttention,
    LayerOrder,
    group_by_length,
    paged_attention,
)
from engine.model.attention.step_batch import StepBatch
from kernels.paged_attention.arguments import Softmax
from tests.engine.ragged import Piece, make_batch, shuffled_tables

HEAD_DIM = 8
NUM_KV_HEADS = 2


@dataclass(frozen=True)
class Scene:
    """A pool that holds random contexts, a step over it, and the dense keys and values [2, N, heads, dim]."""

    pool: KVPool
    batch: StepBatch
    query: Tensor
    contexts: list[Tensor]
    lengths: list[tuple[int, int]]


def make_scene(lengths: list[tuple[int, int]], *, block_size: int, group: int, seed: int) -> Scene:
    """`lengths` holds each sequence's tokens before the step and tokens of the step."""
    generator = torch.Generator().manual_seed(seed)
    tables, num_blocks = shuffled_tables([before + new for before, new in lengths], block_size, seed)
    pool = KVPool(BlockLayout(1, block_size, NUM_KV_HEADS, HEAD_DIM, torch.float64), num_blocks)
    pool.tensor.fill_(float("nan"))
    contexts = []
    for (before, new), table in zip(lengths, tables, strict=True):
        context = torch.randn(
            2, before + new, NUM_KV_HEADS, HEAD_DIM, dtype=torch.float64, generator=generator
        )
        for place in range(before):
            block, offset = table[place // block_size], place % block_size
            pool.layer(0)[block, :, offset] = context[:, place]
        contexts.append(context)
    pieces = [Piece(before, [0] * new, table) for (before, new), table in zip(lengths, tables, strict=True)]
    num_tokens = sum(new for _, new in lengths)
    query = torch.randn(num_tokens, NUM_KV_HEADS * group, HEAD_DIM, dtype=torch.float64, generator=generator)
    return Scene(pool, make_batch(pieces, block_size), query, contexts, lengths)


def new_tokens(scene: Scene) -> tuple[Tensor, Tensor]:
    fresh = torch.cat(
        [context[:, before:] for context, (before, _) in zip(scene.contexts, scene.lengths, strict=True)],
        dim=1,
    )
    return fresh[0], fresh[1]


def dense(scene: Scene, softmax: Softmax) -> Tensor:
    """One query at a time, one head at a time, as the formula says it."""
    output = torch.empty_like(scene.query)
    group = scene.query.shape[1] // NUM_KV_HEADS
    token = 0
    for context, (before, new) in zip(scene.contexts, scene.lengths, strict=True):
        for position in range(before, before + new):
            first = max(0, position + 1 - softmax.sliding_window) if softmax.sliding_window else 0
            for head in range(scene.query.shape[1]):
                keys, values = context[:, first : position + 1, head // group]
                scores = keys @ scene.query[token, head] * softmax.scale
                if softmax.softcap:
                    scores = torch.tanh(scores / softmax.softcap) * softmax.softcap
                weights = scores.exp()
                rest = softmax.sinks[head].exp() if softmax.sinks is not None else 0.0
                output[token, head] = weights @ values / (weights.sum() + rest)
            token += 1
    return output


softmaxes = st.builds(
    lambda window, softcap, sinks: Softmax(
        0.3, window, softcap, torch.linspace(-2, 2, 8, dtype=torch.float64) if sinks else None
    ),
    st.none() | st.integers(1, 12),
    st.none() | st.floats(0.5, 5.0),
    st.booleans(),
)
sequences = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 1) | st.integers(1, 9)), min_size=1, max_size=5
)


@given(sequences, softmaxes, st.sampled_from([1, 4, 16]), st.integers(0, 2**31))
def test_any_ragged_batch_attends_as_the_formula_says(
    lengths: list[tuple[int, int]], softmax: Softmax, block_size: int, seed: int
) -> None:
    scene = make_scene(lengths, block_size=block_size, group=4, seed=seed)
    step = CpuAttention(scene.pool, PoolRows(scene.pool), scene.batch, LayerOrder())
    got = step.attend(0, scene.query, *new_tokens(scene), softmax)
    torch.testing.assert_close(got, dense(scene, softmax), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lengths", [[(30, 1), (3, 1), (0, 1)], [(30, 4), (3, 1), (0, 9)]])
def test_the_kernels_path_attends_as_the_formula_says(lengths: list[tuple[int, int]]) -> None:
    scene = make_scene(lengths, block_size=4, group=3, seed=5)
    softmax = Softmax(0.3, 7, 2.0, torch.linspace(-2, 2, 6, dtype=torch.float64))
    step = KernelAttention(scene.pool, scene.batch, LayerOrder())
    got = step.attend(0, scene.query, *new_tokens(scene), softmax)
    torch.testing.assert_close(got, dense(scene, softmax), rtol=1e-9, atol=1e-9)


def test_a_long_and_many_short_decodes_share_no_padding() -> None:
    lengths = [(1500, 1), *[(place, 1) for place in range(12)]]
    scene = make_scene(lengths, block_size=16, group=1, seed=1)
    softmax = Softmax(0.3)
    step = CpuAttention(scene.pool, PoolRows(scene.pool), scene.batch, LayerOrder())
    torch.testing.assert_close(
        step.attend(0, scene.query, *new_tokens(scene), softmax), dense(scene, softmax), rtol=1e-9, atol=1e-9
    )


def test_a_growing_context_seldom_asks_for_a_new_buffer() -> None:
    pool = KVPool(BlockLayout(1, 16, NUM_KV_HEADS, HEAD_DIM, torch.float32), num_blocks=64)
    rows = PoolRows(pool)
    buffers = {rows.gather(0, torch.arange(length)[None]).data_ptr() for length in range(512, 1024)}
    assert len(buffers) <= 2


@given(
    st.lists(st.integers(1, 3000), max_size=40),
    st.integers(1, 20_000),
)
def test_groups_hold_every_decode_once_and_pad_little(lengths: list[int], max_positions: int) -> None:
    groups = list(group_by_length([(length, seq) for seq, length in enumerate(lengths)], max_positions))
    assert sorted(seq for seqs, _ in groups for seq in seqs) == list(range(len(lengths)))
    for seqs, longest in groups:
        own = [lengths[seq] for seq in seqs]
        assert longest == max(own)
        assert longest * len(own) - sum(own) <= MAX_PADDING
        assert len(own) == 1 or longest * len(own) <= max_positions


def test_equal_lengths_are_one_group() -> None:
    assert list(group_by_length([(100, 0), (100, 1), (100, 2)], 1000)) == [([2, 1, 0], 100)]


@pytest.mark.parametrize(("entered", "layer"), [((), 1), ((0,), 0), ((0,), 2)])
def test_a_layer_out_of_order_is_our_bug(entered: tuple[int, ...], layer: int) -> None:
    order = LayerOrder()
    for earlier in entered:
        order.enter(earlier)
    with pytest.raises(AssertionError, match="was due"):
        order.enter(layer)


def test_a_mask_is_never_ignored() -> None:
    tensor = torch.zeros(1, 1, 1, 1)
    with pytest.raises(AssertionError, match="mask"):
        paged_attention(torch.nn.Module(), tensor, tensor, tensor, tensor, step=None)  # type: ignore[arg-type]
