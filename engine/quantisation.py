"""What of a worker is kept in 8 bits instead of the dtype it computes in: one setting for a whole fleet."""

from __future__ import annotations

import enum


class Quantisation(enum.Enum):
    """Named as the flag `--quantisation` names it. Without torch: flags are parsed before it is loaded."""

    NONE = "none"
    INT8 = "int8"

    @property
    def weights(self) -> bool:
        """Whether linear layers hold int8 weights (`engine.int8_weights`)."""
        return self is Quantisation.INT8
