"""How far Baton's numbers may be from transformers': a multiple of what rounding does to transformers' own.

transformers computes the same tokens several times. Each time every number that enters a decoder layer is
moved by at most one unit in its last place, as if the part before it had rounded differently. The distance
between such runs is the noise of this dtype, in this model, with these weights. A row of Baton's may be
FACTOR times as far away as the noise of the same row, or as the noise of a typical row if that is larger.

Rounding sends some rows of a mixture to other experts. Such a row jumps. JUMPS times as many rows of Baton's
may jump as of transformers' own, and MIXED more in a mixture, in which transformers' few runs may have none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FACTOR = 8.0
"""Baton's rows are up to twice as far away as the noise in tiny models of listed families, in every dtype,
and up to 4 times in the demo model. Wrong scales, masks, positions and missing state are hundreds of times as
far in float32."""
JUMPS = 2
MIXED = 3
"""Fewer than a fault of every sequence, block or decode would make wrong."""
MAX_NOISE = 0.1
"""Where typical noise is larger, a wrong model could be within it."""
_ROWS_AT_ONCE = 16
"""Logits of a large vocabulary take 2 MB a row in float64."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A row that is further away than tolerated."""

    row: int
    difference: float
    tolerance: float


def distances(found: Tensor, expected: Tensor) -> Tensor:
    """Return how far rows [n, width] are from those expected, relative to their lengths, [n] float64."""
    begins = range(0, len(found), _ROWS_AT_ONCE)
    parts = [slice(begin, begin + _ROWS_AT_ONCE) for begin in begins]
    return torch.cat([_distances(found[part], expected[part]) for part in parts])


def _distances(found: Tensor, expected: Tensor) -> Tensor:
    found, expected = found.double(), expected.double()
    lengths = torch.linalg.vector_norm(expected, dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    relative: Tensor = torch.linalg.vector_norm(found - expected, dim=-1) / lengths
    return relative


def excess(differences: Tensor, noise: Tensor, *, is_mixture: bool) -> Excess | None:
    """Return the worst row that is too far away; None if enough rows are near.

    `differences` and `noise` [n] are distances of the same rows: Baton's, and the largest of transformers'.
    """
    typical = float(noise.median())
    tolerances = FACTOR * noise.clamp(min=typical)
    is_far = ~(differences <= tolerances)  # NaN counts as far
    num_jumps = JUMPS * int((noise > FACTOR * typical).sum()) + (MIXED if is_mixture else 0)
    if int(is_far.sum()) <= num_jumps:
        return None
    ratios = (differences / tolerances).nan_to_num(nan=float("inf"))
    row = int(torch.where(is_far, ratios, -1.0).argmax())
    return Excess(row, float(differences[row]), float(tolerances[row]))
