"""The channels of gpt-oss: what it thinks, what it says, and to whom.

<|channel|>analysis<|message|>...<|end|>
<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
<|start|>assistant<|channel|>final<|message|>...<|return|>
"""

from __future__ import annotations

import re

from model_output.formats.calls import stream_arguments
from model_output.formats.families import HARMONY_CONTROLS
from model_output.formats.output import Output
from model_output.formats.source import Markers, Reader, Source

_MARKERS = Markers(HARMONY_CONTROLS)
_HEADER_CHARACTERS = re.compile(r"[\w.=\- ]*")
_MAX_HEADER = 256
"""Characters between two markers of a header; a model never writes as many."""
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")


def read_harmony(source: Source, output: Output, *, reasoning_open: bool) -> Reader[None]:
    """Read a whole output. It begins with a header, or inside the analysis if the prompt did."""
    marker = "<|message|>"
    header: str | None = "<|channel|>analysis"
    if not reasoning_open:
        header = yield from _read_header(source, output)
    while True:
        if header is not None:
            marker = yield from _read_body(source, output, header)
        else:
            output.pause()
            marker = yield from source.until(_MARKERS, output.content)
        output.pause()
        if not marker:
            return
        if marker in {"<|start|>", "<|channel|>"}:
            header = yield from _read_header(source, output, marker)
        else:
            header = None


def _read_header(source: Source, output: Output, first: str = "") -> Reader[str | None]:
    """Return a header up to its `<|message|>`; None if it turns out to be content."""
    source.keep(first)
    parts = [first]
    while sum(map(len, parts)) < _MAX_HEADER:
        yield from source.run(_HEADER_CHARACTERS, parts.append)
        marker = yield from source.take_one(HARMONY_CONTROLS)
        if marker == "<|message|>":
            source.kept()
            return "".join(parts)
        if marker not in {"<|channel|>", "<|constrain|>", "<|start|>"}:
            break
        parts.append(marker)
    text = source.kept()
    if source.is_cut and _MARKERS.pattern.search(text):
        return None  # half a header
    for control in HARMONY_CONTROLS:
        text = text.replace(control, "")
    output.content(text)
    return None


def _read_body(source: Source, output: Output, header: str) -> Reader[str]:
    """Read a message up to the marker that ends it, which is returned; nothing at the end."""
    recipient = _RECIPIENT.search(header)
    if recipient is not None and output.knows(recipient[1]):
        source.keep()
        yield from source.skip_space()
        if (yield from source.peek()) == "{":
            if (yield from stream_arguments(source, output, recipient[1])):
                yield from source.skip_space()
            unread = source.kept().lstrip()
            if not source.is_cut:
                output.content(unread)
            return (yield from source.until(_MARKERS, output.content))
        output.content(source.kept())
    is_thought = "<|channel|>analysis" in header
    return (yield from source.until(_MARKERS, output.reasoning if is_thought else output.content))
