"""The traces that Mooncake published, as JSON lines.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ..., 2354]}

Timestamps are milliseconds. `hash_ids` has one number for each block of 512 prompt tokens, the last of which
may be cut. A number stands for the block and everything before it: prompts with the same number begin alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from sim.workloads.formats.rows import (
    LENGTH,
    MAX_AT_S,
    MAX_TOKENS,
    Rows,
    is_blocks,
    is_int,
    is_time,
    json_row,
)
from sim.workloads.trace import TraceError, TraceRequest

BLOCK_TOKENS = 512
TIME = "timestamp"

_MAX_MS = 1000 * MAX_AT_S
_FIELDS: dict[str, tuple[Callable[[object], bool], str]] = {
    TIME: (lambda value: is_time(value, _MAX_MS), f"milliseconds from 0 to {_MAX_MS:g}"),
    "input_length": (is_int(0, MAX_TOKENS), LENGTH),
    "output_length": (is_int(0, MAX_TOKENS), LENGTH),
    "hash_ids": (is_blocks, "a list of integers from 0"),
}


def begins(first_line: str) -> bool:
    """Return True if a file that begins so has this format."""
    return '"hash_ids"' in first_line


def read(lines: Iterable[str]) -> Rows:
    """Yield the requests with their lines."""
    for line, text in enumerate(lines, start=1):
        row = json_row(line, text, _FIELDS)
        for name, (accepts, accepted) in _FIELDS.items():
            if not accepts(row.get(name)):
                raise TraceError(line, name, row.get(name), accepted)
        prompt, blocks = row["input_length"], row["hash_ids"]
        num_blocks = math.ceil(prompt / BLOCK_TOKENS)
        if len(blocks) != num_blocks:
            accepted = f"{num_blocks} for {prompt} tokens, one for each {BLOCK_TOKENS}"
            raise TraceError(line, "the number of hash_ids", len(blocks), accepted)
        yield (
            line,
            TraceRequest(
                row[TIME] / 1000,
                prompt,
                row["output_length"],
                shared_blocks=tuple(blocks),
                shared_block_tokens=BLOCK_TOKENS if blocks else 0,
            ),
        )
