"""An exporter that keeps spans instead of sending them."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.tracing.span import Span


class Kept:
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def put(self, spans: Sequence[Span]) -> None:
        self.spans += spans

    def close(self) -> None:
        pass
