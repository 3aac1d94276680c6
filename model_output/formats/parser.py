"""Tool calls and reasoning in the text of one choice."""

from __future__ import annotations

import re
from collections.abc import Sequence

from model_output.formats.calls import FUNCTION, read_calls, read_function
from model_output.formats.families import HARMONY, REASONING_FORMATS, TOOL_FORMATS, ToolFormat
from model_output.formats.harmony import read_harmony
from model_output.formats.output import Output
from model_output.formats.source import Markers, Reader, Source
from model_output.formats.types import ChatFormats, Delta, Message, Tool

_NO_TOOLS = ToolFormat(())


class OutputParser:
    """Takes the text of one choice apart as it comes.

    The deltas are a function of the text from its beginning, however it is cut. Calls name only known tools;
    what looks like a call and is none stays content. A call that breaks off stays cut off, and what follows
    is content. Only what may begin a marker, a name or a number waits for more, and so does white space.
    """

    def __init__(
        self,
        formats: ChatFormats,
        tools: Sequence[Tool],
        *,
        seed: str,
        reasoning_open: bool = False,
        has_format: bool = False,
    ) -> None:
        """`seed` makes the ids of calls, which must be unique in a chat: a request's id and a choice's index.

        `reasoning_open`: the prompt ends inside reasoning. Without tools no calls are looked for.
        `has_format`: the content is calls or one text in a format, such as JSON that quotes a call.
        """
        self._formats = formats
        self._has_format = has_format
        self._tools = TOOL_FORMATS[formats.tools] if tools and formats.tools else _NO_TOOLS
        self._names = [tool.name for tool in tools]
        self._source = Source()
        self._output = Output(tools, seed, has_short_ids=formats.tools == "mistral")
        self._reading = self._read(reasoning_open)

    def feed(self, text: str) -> list[Delta]:
        """Return what more text says."""
        self._source.feed(text)
        next(self._reading, None)
        return self._output.take()

    def finish(self, cut_before: str | None = None) -> list[Delta]:
        """Return the rest. Feed nothing afterwards.

        If the output was cut off, `cut_before` is the stop string that did it, or nothing. The half of a
        marker, a call or a value is then left out; else, if the model itself ended there, it is content.
        """
        self._source.end(cut_before)
        next(self._reading, None)
        if not self._source.has_dropped:
            self._output.end()
        return self._output.take()

    def read(self, text: str, cut_before: str | None = None) -> Message:
        """Return what a whole text says; `cut_before` as for `finish`."""
        return Message.of([*self.feed(text), *self.finish(cut_before)])

    @property
    def has_cut_call(self) -> bool:
        """Whether the arguments of a call broke off, so that they are no JSON object."""
        return self._output.has_cut_call

    def _read(self, reasoning_open: bool) -> Reader[None]:
        if HARMONY in {self._formats.tools, self._formats.reasoning}:
            yield from read_harmony(self._source, self._output, reasoning_open=reasoning_open)
            return
        if self._formats.reasoning:
            yield from self._read_reasoning(reasoning_open)
        yield from self._read_content()

    def _read_reasoning(self, is_open: bool) -> Reader[None]:
        form, source, output = REASONING_FORMATS[self._formats.reasoning], self._source, self._output
        if not is_open:
            source.keep()
            yield from source.skip_space()
            opened = yield from source.take_one(form.opens)
            text = source.kept()
            if not opened:
                output.content(text)
                return
        output.pause()
        markers = Markers([*form.closes, *form.controls])
        while (marker := (yield from source.until(markers, output.reasoning))) in form.controls:
            pass
        if marker:
            output.pause()

    def _read_content(self) -> Reader[None]:
        tools, source, output = self._tools, self._source, self._output
        controls = tools.controls
        if self._formats.reasoning:
            controls += REASONING_FORMATS[self._formats.reasoning].controls
        opens = tools.opens
        if tools.bare or self._has_format:
            has_calls = yield from self._read_first_calls(controls)
            if self._has_format and not has_calls:
                opens = ()
        markers = Markers([*opens, *controls])
        while marker := (yield from source.until(markers, output.content)):
            if marker in opens:
                source.keep(marker)
                yield from self._read_calls(marker, controls)

    def _read_first_calls(self, controls: Sequence[str]) -> Reader[bool]:
        """Read calls at the beginning of the content; return whether there were some."""
        tools, source = self._tools, self._source
        source.keep()
        yield from source.skip_space()
        marker = (yield from source.take_one(tools.opens)) if self._has_format else ""
        if marker or (tools.bare and (yield from source.peek()) == tools.bare):
            return (yield from self._read_calls(marker, controls))
        self._output.content(source.kept())
        return False

    def _read_calls(self, marker: str, controls: Sequence[str]) -> Reader[bool]:
        """Read what may be calls after a marker; return whether it was."""
        tools, source, output = self._tools, self._source, self._output
        read, num_before = read_function if marker == FUNCTION else read_calls, output.num_calls
        if (yield from read(source, output)):
            yield from source.skip_space()
            yield from source.take_one(tools.closes)
            source.kept()
            output.pause()
            return True
        text = source.kept()
        if source.is_cut and (marker or output.num_calls > num_before or self._may_begin_call(text)):
            source.drop()
            return False
        ending = Markers(controls)
        # Where reading stopped may be inside a control.
        end = ending.safe_end(text, len(marker))
        output.content(ending.pattern.sub("", text[:end]))
        source.give_back(text[end:])
        return False

    def _may_begin_call(self, text: str) -> bool:
        """Return whether a text without a marker is the beginning of a call."""
        squeezed, begins = re.sub(r"\s", "", text), "[" if self._tools.bare == "[" else '{"name":"'
        return any(
            whole.startswith(squeezed) or squeezed.startswith(whole)
            for whole in (f"{begins}{name}" for name in self._names)
        )
