"""A step's attention on the CPU whose bits depend only on a sequence's own tokens up to the query.

Queries are cut into tiles of a fixed number of rows; one token has a row for each query head that shares a KV
head. Keys and values are cut into tiles of TILE_POSITIONS at absolute positions. Every product is one tile by
one tile. Sums over tiles are made in the order of positions, starting from 0; a tile that a query does not
see has weights of exactly 0 and changes nothing. So the bits do not depend on the chunk that a token is in,
nor on the other sequences of the step. A decode's tile has one token, a chunk's many; their heights were
found to give the same bits.

The largest score, which any order of visits finds exactly, is known before the first weight is computed: a
running maximum would depend on the tiles visited so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kv.rows import KVRows, rows_at
from engine.model.attention.attention import MAX_GATHER_BYTES, LayerOrder, group_by_length
from engine.model.attention.step_batch import StepBatch
from kernels.paged_attention.arguments import Softmax

# Shorter tiles waste less on short contexts, and cost a few calls more on long ones.
TILE_POSITIONS = 128
TALL_ROWS = 64
LOW_ROWS = (2, 4, 8, 16)
MAX_SCORE_BYTES = 1 << 20
"""Scores of a chunk that are computed at once: more would not stay in the cache."""
VECTOR = 64
"""Multiple at which an elementwise operation has no scalar tail, which would round differently."""


@dataclass(frozen=True, slots=True)
class Heights:
    """Rows of a query tile for one token alone, and for as many as fit."""

    low: int
    tall: int

    @classmethod
    def agreeing(cls, head_dim: int, share: int, dtype: torch.dtype) -> Heights:
        """Return the cheapest heights that give the same bits; `share` query heads read one KV head."""
        tall = -(-share // TALL_ROWS) * TALL_ROWS
        generator = torch.Generator().manual_seed(head_dim)
        shapes = ((tall, head_dim), (TILE_POSITIONS, head_dim), (tall, TILE_POSITIONS))
        queries, keys, weights = (
            torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
        )
        pairs = ((queries, keys.t()), (weights, keys))
        for low in LOW_ROWS:
            if low >= share and all(_agrees(rows, low, matrix) for rows, matrix in pairs):
                return cls(low, tall)
        return cls(tall, tall)


def _agrees(rows: Tensor, low: int, matrix: Tensor) -> bool:
    """Return whether tiles of `low` rows give the bits of one tile, wherever in a tile a row is."""
    num_rows, inner = rows.shape
    shared = matrix.expand(num_rows // low, *matrix.shape)

    def in_tiles(rows: Tensor) -> Tensor:
        return torch.bmm(rows.reshape(-1, low, inner), shared).view(num_rows, -1)

    tall = torch.bmm(rows[None], matrix[None])[0]
    return torch.equal(tall, in_tiles(rows)) and torch.equal(tall, in_tiles(rows.roll(1, 0)).roll(-1, 0))


@dataclass(frozen=True, slots=True)
class TileGroup:
    """b sequences with p query tiles in all, of t tokens each, over n tiles of positions; b is 1 or p.

    tokens  [p * t] int64, indexes into the step's tokens; padding repeats a token
    places  [real] int64, which of `tokens` are no padding; None if all are
    rows    [b, n * TILE_POSITIONS] int64, pool rows; padding repeats a sequence's last position, so that
            every row read is finite: a masked NaN would still be a NaN
    bias    [n, p, t, 1, TILE_POSITIONS], 0 where visible, else -inf
    """

    tokens: Tensor
    places: Tensor | None
    rows: Tensor
    bias: Tensor
    per_tile: int
    height: int


class TiledAttention:
    """The attention of one batch; the step's tokens may be followed by padding, which gets zeros."""

    __slots__ = (
        "_batch", "_groups", "_heights", "_kept", "_lens", "_order", "_rows", "_share", "_slot_rows",
        "_starts",
    )  # fmt: skip

    def __init__(
        self, rows: KVRows, batch: StepBatch, order: LayerOrder, share: int, heights: Heights
    ) -> None:
        self._rows = rows
        self._batch = batch
        self._order = order
        self._groups: dict[int | None, list[TileGroup]] = {}
        self._lens: list[int] = batch.context_lens.tolist()
        self._starts: list[int] = batch.cu_seqlens_q.tolist()
        self._kept = (batch.slot_mapping >= 0).nonzero().view(-1)
        self._slot_rows = rows.of_slots(batch.slot_mapping[self._kept])
        self._share = share
        self._heights = heights

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, softmax: Softmax) -> Tensor:
        self._order.enter(layer)
        self._rows.store(layer, self._slot_rows, key[self._kept], value[self._kept])
        groups = self._groups.get(softmax.sliding_window)
        if groups is None:
            groups = self._groups[softmax.sliding_window] = list(self._plan(softmax.sliding_window))
        output = torch.zeros(query.shape, dtype=query.dtype)
        for group in groups:
            result = self._attend_group(group, query, self._rows.gather(layer, group.rows), softmax)
            if group.places is None:
                output.index_copy_(0, group.tokens, result)
            else:
                output.index_copy_(0, group.tokens[group.places], result[group.places])
        return output

    def _plan(self, window: int | None) -> Iterator[TileGroup]:
        decodes = []
        for seq, context_len in enumerate(self._lens):
            query_len = self._starts[seq + 1] - self._starts[seq]
            if query_len == 1:
                decodes.append((_num_tiles(context_len - 1, context_len, window), seq))
            else:
                yield from self._chunk(seq, query_len, context_len, window)
        tile_bytes = 2 * self._rows.width * self._rows.layout.dtype.itemsize * TILE_POSITIONS
        for seqs, num_tiles in group_by_length(decodes, max(1, MAX_GATHER_BYTES // tile_bytes)):
            yield self._decodes(seqs, num_tiles, window)

    def _chunk(self, seq: int, query_len: int, context_len: int, window: int | None) -> Iterator[TileGroup]:
        """Yield a chunk in parts of so few tokens that their scores stay in the cache."""
        done, begin, height = context_len - query_len, self._starts[seq], self._heights.tall
        per_tile, layout = height // self._share, self._rows.layout
        row_bytes = layout.num_kv_heads * layout.dtype.itemsize * TILE_POSITIONS * _num_tiles(0, context_len)
        part = max(1, MAX_SCORE_BYTES // (row_bytes * height)) * per_tile
        for at in range(0, query_len, part):
            own = torch.arange(at, min(at + part, query_len))
            last = done + int(own[-1])
            missing = -len(own) % per_tile
            places = torch.arange(len(own)) if missing else None
            own = torch.cat((own, own[-1:].expand(missing)))
            first = _first_tile(done + at, window) * TILE_POSITIONS
            num_tiles = _num_tiles(done + at, last + 1, window)
            positions = torch.arange(first, first + num_tiles * TILE_POSITIONS)
            rows = rows_at(
                self._rows, self._batch.block_tables[seq : seq + 1], positions[None].clamp(max=last)
            )
            queries = (done + own).view(-1, per_tile)
            bias = self._bias(positions.expand(len(queries), -1), queries, window)
            yield TileGroup(begin + own, places, rows, bias, per_tile, height)

    def _decodes(self, seqs: list[int], num_tiles: int, window: int | None) -> TileGroup:
        which = torch.tensor(seqs)
        last = self._batch.context_lens[which, None].long() - 1
        firsts = torch.tensor([_first_tile(self._lens[seq] - 1, window) for seq in seqs])
        positions = firsts[:, None] * TILE_POSITIONS + torch.arange(num_tiles * TILE_POSITIONS)
        rows = rows_at(self._rows, self._batch.block_tables[which], torch.minimum(positions, last))
        tokens = self._batch.cu_seqlens_q[which].long()
        return TileGroup(tokens, None, rows, self._bias(positions, last, window), 1, self._heights.low)

    def _bias(self, positions: Tensor, queries: Tensor, window: int | None) -> Tensor:
        """Return the bias of positions [p, N] for queries at positions [p, t]."""
        places, own = positions[:, None], queries[:, :, None]
        hidden = places > own
        if window:
            hidden |= places <= own - window
        bias = torch.zeros(hidden.shape, dtype=self._rows.layout.dtype).masked_fill_(hidden, float("-inf"))
        tiled = bias.view(*queries.shape, 1, -1, TILE_POSITIONS)
        return tiled.permute(3, 0, 1, 2, 4).contiguous()

    def _attend_group(self, group: TileGroup, query: Tensor, kv: Tensor, softmax: Softmax) -> Tensor:
        """Return a group's output [p * t, num_q_heads, D] for query [T, num_q_heads, D] and gathered kv."""
        by_token = (group.per_tile, self._share)
        filled = group.per_tile * self._share
        num_sequences, _, num_heads, head_dim = kv.shape[1:]
        tiled = kv.view(2, num_sequences, -1, TILE_POSITIONS, num_heads, head_dim)
        keys, values = tiled.permute(0, 4, 1, 2, 3, 5)
        scores = self._scores(self._query_tiles(group, query), keys, softmax)
        _in_tokens(scores[:, :, :, :filled], 3, by_token).add_(group.bias)
        largest = scores.amax(-1).amax(1)
        sinks = None
        if softmax.sinks is not None:
            sinks = torch.full_like(largest[:, :1], float("-inf"))
            own = softmax.sinks.to(query.dtype).view(len(sinks), -1)
            sinks[:, 0, :filled] = own.repeat(1, group.per_tile)
            largest = torch.maximum(largest, sinks)
        scores.sub_(largest[:, None, ..., None]).exp_()
        total = _in_order(scores.sum(-1))
        if sinks is not None:
            total += _exp(sinks - largest)
        output = _weighted(scores, values).div_(total[..., None])[:, :, :filled]
        output = _in_tokens(output, 2, by_token).permute(1, 2, 0, 3, 4)
        return output.reshape(-1, *query.shape[1:])

    def _query_tiles(self, group: TileGroup, query: Tensor) -> Tensor:
        """Return [num_kv_heads, p, height, D], with zeros below the tokens' rows."""
        num_heads, head_dim = self._rows.layout.num_kv_heads, query.shape[2]
        chosen = query.index_select(0, group.tokens)
        chosen = chosen.view(-1, group.per_tile, num_heads, self._share, head_dim).permute(2, 0, 1, 3, 4)
        tiles = chosen.reshape(num_heads, -1, group.per_tile * self._share, head_dim)
        missing = group.height - tiles.shape[2]
        return F.pad(tiles, (0, 0, 0, missing)) if missing else tiles

    def _scores(self, queries: Tensor, keys: Tensor, softmax: Softmax) -> Tensor:
        if softmax.softcap is None:
            return _products(queries.mul_(softmax.scale), keys)
        scores = _products(queries.mul_(softmax.scale / softmax.softcap), keys)
        return scores.tanh_().mul_(softmax.softcap)


def _in_tokens(rows: Tensor, dimension: int, by_token: tuple[int, int]) -> Tensor:
    """View a tile's rows as [tokens, query heads]."""
    shape = rows.shape
    return rows.view(*shape[:dimension], *by_token, *shape[dimension + 1 :])


def _first_tile(position: int, window: int | None) -> int:
    """Return the tile of the first position that a query at `position` sees."""
    return max(0, position + 1 - window) // TILE_POSITIONS if window else 0


def _num_tiles(position: int, end: int, window: int | None = None) -> int:
    """Return how many tiles queries from `position` to before `end` see."""
    return -(-end // TILE_POSITIONS) - _first_tile(position, window)


def _products(queries: Tensor, keys: Tensor) -> Tensor:
    """Multiply queries [h, p, M, D] by keys [h, b, n, N, D] to [h, n, p, M, N]."""
    h, p, height, head_dim = queries.shape
    b, n, length = keys.shape[1:4]
    if b < p:
        scores = queries.new_empty(h, n, p, height, length)
        for head in range(h):
            for tile in range(n):
                turned = keys[head, 0, tile].t().expand(p, head_dim, length)
                torch.bmm(queries[head], turned, out=scores[head, tile])
        return scores
    scores = queries.new_empty(h, p, n, height, length)
    for head in range(h):
        repeated = queries[head, :, None].expand(p, n, height, head_dim).reshape(p * n, height, head_dim)
        torch.bmm(repeated, keys[head].flatten(0, 1).transpose(1, 2), out=scores[head].flatten(0, 1))
    return scores.transpose(1, 2)


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """Multiply weights [h, n, p, M, N] by values [h, b, n, N, D], tile after tile, to [h, p, M, D]."""
    h, n, p, height, length = weights.shape
    b, head_dim = values.shape[1], values.shape[4]
    if b < p:
        parts = weights.new_empty(h, n, p, height, head_dim)
        for head in range(h):
            for tile in range(n):
                shared = values[head, 0, tile].expand(p, length, head_dim)
                torch.bmm(weights[head, tile], shared, out=parts[head, tile])
        return _in_order(parts)
    parts = weights.new_empty(h, p, n, height, head_dim)
    for head in range(h):
        own = weights[head].transpose(0, 1).flatten(0, 1)
        torch.bmm(own, values[head].flatten(0, 1), out=parts[head].flatten(0, 1))
    return _in_order(parts.transpose(1, 2))


def _in_order(parts: Tensor) -> Tensor:
    """Sum over dimension 1, from 0 and in its order."""
    total = torch.zeros_like(parts[:, 0])
    for part in parts.unbind(1):
        total += part
    return total


def _exp(numbers: Tensor) -> Tensor:
    """Return exp of each number, repeated to VECTOR: the tail of a short array would round differently."""
    return numbers[..., None].expand(*numbers.shape, VECTOR).exp()[..., 0]
