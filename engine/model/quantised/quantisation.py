"""The setting that says what is kept in 8 or 4 bits; it is the same in a whole fleet.

`kv8` and `kvfp8` keep keys and values in the same memory. int8 is more exact, as it has a scale for each
token and head (`kernels.store_kv.quantise`). fp8 allows comparison with systems that have an fp8 cache.
"""

from __future__ import annotations

import enum


class Quantisation(enum.Enum):
    """The values of `--quantisation`. Free of torch, since flags are parsed before torch is loaded."""

    NONE = "none"
    INT8 = "int8"
    INT4 = "int4"
    KV8 = "kv8"
    KVFP8 = "kvfp8"
    INT8_KV8 = "int8+kv8"
    INT8_KVFP8 = "int8+kvfp8"
    INT4_KV8 = "int4+kv8"
    INT4_KVFP8 = "int4+kvfp8"
    INT8_LOGITS8 = "int8+logits8"
    INT4_LOGITS8 = "int4+logits8"
    INT8_LOGITS8_KV8 = "int8+logits8+kv8"
    INT4_LOGITS8_KV8 = "int4+logits8+kv8"

    @property
    def weights(self) -> int:
        """The bits of linear layers' weights (`engine.model.quantised.rounding`); 0 if they are floats."""
        return next((_BITS[part] for part in self._parts if part in _BITS), 0)

    @property
    def logits(self) -> bool:
        """Whether the layer that makes the logits, and the embedding, have weights of 8 bits."""
        return "logits8" in self._parts

    @property
    def kv(self) -> str | None:
        """Torch's name of the 8-bit dtype of keys and values in the pool; None if they are not quantised."""
        return next((_KV_DTYPES[part] for part in self._parts if part in _KV_DTYPES), None)

    @property
    def _parts(self) -> list[str]:
        return self.value.split("+")


_BITS = {"int8": 8, "int4": 4}
_KV_DTYPES = {"kv8": "int8", "kvfp8": "float8_e4m3fn"}
