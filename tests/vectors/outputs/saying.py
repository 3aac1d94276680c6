"""Take a vector apart, into deltas as JSON."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from model_output.formats import ChatFormats, Delta, OutputParser, Tool
from tests.vectors.outputs.reading import Output, tools


def deltas_of(vector: Output, pieces: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Return the deltas that each piece of a text adds, and those at its end."""
    names = vector.get("tools")
    parser = OutputParser(
        ChatFormats(vector.get("tool_format", ""), vector.get("reasoning_format", "")),
        [Tool(**tool) for tool in tools() if names is None or tool["name"] in names],
        seed="s",
        reasoning_open=vector.get("reasoning_open", False),
        has_format=vector.get("has_format", False),
    )
    said = [*map(parser.feed, pieces), parser.finish(vector.get("cut_before"))]
    return [[_plain(delta) for delta in deltas] for deltas in said]


def _plain(delta: Delta) -> dict[str, Any]:
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(delta).__name__).lower()
    return {"type": kind, **dataclasses.asdict(delta)}
