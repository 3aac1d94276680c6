"""How a chunk's attention is cut into tiles."""

from dataclasses import dataclass

from kernels.launch import next_power_of_2
from kernels.paged_attention.kernel import MAX_TILE, tile_len


@dataclass(frozen=True, slots=True)
class Tiling:
    """A program's rows, `queries` × the heads of a group, and the KV rows of a step of its loop."""

    rows: int
    queries: int
    keys: int
    num_warps: int
    num_stages: int


def choose_tiling(group: int, head_pad: int, element_size: int, kv_size: int, *, in_spans: bool) -> Tiling:
    """Return the tiling for queries with numbers of `element_size` bytes, and KV with numbers of `kv_size`.

    64 rows are a Hopper warpgroup's instruction, and two groups share loaded keys and values. They need to:
    64 products for each byte that comes through the L2 cache, at some 5.5 TB/s, are less than half of what
    the tensor cores can multiply. With 128 keys at a time a warp issues 350 instructions for each 64 keys,
    and 415 with 64, while the tensor cores take 512 cycles; all registers are used, with hardly any spilling.

    Tensor cores do not multiply float32. Rows that are summed in spans have one tiling for all chunks, and a
    larger one would leave more of a decode's single group idle.

    With two stages, a tile's table entries, its KV and its products follow each other, since nothing is in
    flight while a tile is multiplied. With five, the KV of the next tile and the table entries of the one
    after are: `async_wait` leaves three groups. Heads of up to 128 in 16 bits have room for that, 225 of a
    Hopper SM's 227 KiB, without a spill in the loops; sums in spans would spill more than they do.
    """
    if element_size > 2 or in_spans:
        least_rows, num_warps, most_keys = 64, 4, MAX_TILE
    else:
        least_rows, num_warps, most_keys = 128, 8, 2 * MAX_TILE
    rows = max(least_rows, next_power_of_2(group))
    fits_five = element_size == kv_size == 2 and head_pad <= 128 and rows <= least_rows and not in_spans
    keys = tile_len(head_pad, element_size, most_keys)
    return Tiling(rows, rows // group, keys, num_warps, num_stages=5 if fits_five else 2)
