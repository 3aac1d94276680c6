"""Reads the keys of a GGUF file that describe one architecture, and finds those that nobody reads."""

from __future__ import annotations

import math
from typing import Any

from gguf_model.errors import GgufUnusable, shown
from gguf_model.header import Header

_HARMLESS = {"vocab_size", "rope.scaling.finetuned", "tensor_data_layout"}


class Keys:
    """The keys that begin with the name of the architecture, which methods leave out."""

    def __init__(self, header: Header, architecture: str) -> None:
        self._header = header
        self._architecture = architecture
        self._read = set(_HARMLESS)

    def size(self, key: str, default: int | None = None) -> int:
        """Return a count or a size. Raises `GgufUnusable` if it is none, or missing without a default."""
        value = self._value(key, default, "a number from 1 to 2147483647")
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
            raise self._refusal(key, value, "a number from 1 to 2147483647")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number, likewise."""
        value = self._value(key, default, "a positive number")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value <= 0:
            raise self._refusal(key, value, "a positive number")
        # A float32 says 1e-5 in eight digits; its float64 has more, which nobody has meant.
        return float(f"{value:.8g}")

    def name(self, key: str, default: str, accepted: tuple[str, ...]) -> str:
        """Return one of some names."""
        value = self._value(key, default, ", ".join(accepted))
        if value not in accepted:
            raise self._refusal(key, value, ", ".join(accepted))
        return str(value)

    def has(self, key: str) -> bool:
        return f"{self._architecture}.{key}" in self._header.values

    def check_all_read(self) -> None:
        """Raise `GgufUnusable` for a key that nobody has read, unless its value stands for nothing."""
        for name, value in self._header.values.items():
            architecture, _, key = name.partition(".")
            if architecture == self._architecture and key not in self._read and value:
                raise self._refusal(key, value, "a model without this key, which Baton does not know")

    def refuse(self, key: str, accepted: str) -> GgufUnusable:
        """Return the refusal of a key's value."""
        return self._refusal(key, self._header.values.get(f"{self._architecture}.{key}"), accepted)

    def _value(self, key: str, default: Any, accepted: str) -> Any:
        self._read.add(key)
        value = self._header.values.get(f"{self._architecture}.{key}", default)
        if value is None:
            fault = f"lacks the key {self._architecture}.{key}"
            raise GgufUnusable(self._header.path, fault, accepted)
        return value

    def _refusal(self, key: str, value: object, accepted: str) -> GgufUnusable:
        fault = f"has the {self._architecture}.{key} {shown(value)}"
        return GgufUnusable(self._header.path, fault, accepted)
