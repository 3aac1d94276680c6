"""How the work of `int8_linear` is cut, by the number of rows, and to keep the whole device busy."""

from dataclasses import dataclass

MIN_STEPS = 4
"""Smallest number of steps in a split's loop: with fewer, it would mostly fill its pipeline."""
MAX_SPLITS = 16
MAX_SPLIT_TILES = 1024
"""Most tiles of the output that may be split; each has a counter."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """One program's tile of out, [rows, outputs], computed by steps of `inputs`."""

    rows: int
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int
    programs_per_sm: int
    """At least so many are wanted before an output's terms are no longer split among programs."""


# A decode's product is bound by reading the weights. 4 stages of 8 KiB for each of two to four programs keep
# 64 to 128 KiB of them on their way to a multiprocessor, above the 40 KiB that an H200's rate times its
# latency comes to; 128 int8 inputs are one line of the cache.
_DECODE = tuple(Tiles(rows, 64, 128, 4, 4, 2) for rows in (16, 32, 64))
# From about a hundred rows on the tensor cores are the bound. Weights are converted once for each tile of
# rows. Wider ones would share that among more, but need every register there is.
_CHUNK = Tiles(128, 128, 64, 8, 4, 1)
# Tensor cores have no fp32, and the units that multiply instead unroll a whole tile.
_FP32 = Tiles(16, 32, 32, 4, 3, 2)


def choose_tiles(num_rows: int, element_size: int) -> Tiles:
    """For rows of elements of so many bytes."""
    if element_size > 2:
        return _FP32
    for tiles in _DECODE:
        if num_rows <= tiles.rows:
            return tiles
    return _CHUNK


def choose_num_splits(num_tiles: int, num_steps: int, num_programs: int) -> int:
    """How many parts the sum over inputs is cut in, of MIN_STEPS each, so that about `num_programs` run.

    `num_steps` are those of the whole sum. 1 where tiles are many or the sum is short.
    """
    wanted = min(num_programs // num_tiles, num_steps // MIN_STEPS, MAX_SPLITS)
    if wanted <= 1 or num_tiles > MAX_SPLIT_TILES:
        return 1
    # Rounded so that no split is left without a step.
    return -(-num_steps // -(-num_steps // wanted))
