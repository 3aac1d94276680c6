"""Sampling noise as a pure function of (seed, choice, index), on any device and in any batch.

A counter-based generator (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) whose mixing
function is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014), applied once per word of the counter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_30, _SHIFT_27, _SHIFT_31, _SHIFT_11 = (np.uint64(bits) for bits in (30, 27, 31, 11))
_HALF = 0.5
_SCALE = 2.0**-53


def uniforms(
    seeds: NDArray[np.uint64], choices: NDArray[np.uint64], indexes: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """Return one number in (0, 1), ends excluded, for each row; arguments and result are [rows]."""
    state = _mix(seeds + _GAMMA)
    state = _mix((state ^ choices) + _GAMMA)
    state = _mix((state ^ indexes) + _GAMMA)
    # 53 bits, moved to the middle of their interval, so the result is neither 0 nor 1.
    uniform: NDArray[np.float64] = ((state >> _SHIFT_11).astype(np.float64) + _HALF) * _SCALE
    # The topmost interval's middle rounds up to 1.
    return np.minimum(uniform, 1.0 - _SCALE, out=uniform)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> _SHIFT_30)) * _MIX_1
    state = (state ^ (state >> _SHIFT_27)) * _MIX_2
    return state ^ (state >> _SHIFT_31)
