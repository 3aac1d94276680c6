"""Tells whether this host's C library rounds exp, log and powers as the one that the outcomes were stored on.

Python's `math` takes these functions from the C library, whose last bit depends on the processor: the GNU
library has one variant for processors with fused multiply-add and one for those without.
"""

from __future__ import annotations

import hashlib
import math
import struct

STORED_ON = "85d57dd4f854661f"
_PROBES = range(1, 20_000)


def digest() -> str:
    """Name the bits of these functions at many places."""
    hashed = hashlib.blake2b(digest_size=8)
    for probe in _PROBES:
        place = probe / 997
        results = math.exp(-place), math.log(place), math.log2(place), 2.0**-place, math.cos(place)
        hashed.update(struct.pack("<5d", *results))
    return hashed.hexdigest()


ROUNDS_AS_STORED = digest() == STORED_ON
