"""Read the vectors in this folder: outputs of models, and what routers must say of them.

A vector of `messages.json`, whose `text` says the same in pieces of any size:

    name              a behaviour
    tool_format       and `reasoning_format`: how the model writes calls and reasoning; missing if not at all
    reasoning_open    the prompt ends inside reasoning; missing if it does not
    has_format        the content is calls or one text in a format; missing if it is not
    cut_before        the stop string that cut it off, or "" if there is none; missing if the model ended it
    tools             the names of those in `tools.json` that there are; missing for all
    text              the output
    says              `content`, `reasoning` and `calls` with name and arguments; missing if there are none

A vector of `deltas.json` has, in place of the text, `pieces` with the deltas that each one adds, and those
that come at the `end`. Names are those of `chat_formats`. The seed of ids is "s".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Output = Mapping[str, Any]


def messages() -> Sequence[Output]:
    return _read("messages")


def deltas() -> Sequence[Output]:
    return _read("deltas")


def tools() -> Sequence[Mapping[str, Any]]:
    """Return the tools of all vectors, the fields of each by name."""
    return _read("tools")


def _read(name: str) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads(
        (Path(__file__).parent / f"{name}.json").read_text(encoding="utf-8")
    )
    return read
