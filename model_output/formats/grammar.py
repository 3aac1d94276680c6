"""Grammars of outputs that call tools or have a format, in llguidance's dialect of Lark.

The arguments of calls validate against the schemas of their tools. Reasoning stays free, and comes first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from model_output.formats.argument_grammar import (
    NotForcible,
    json_arguments,
    keyword_arguments,
    tagged_arguments,
)
from model_output.formats.families import HARMONY, REASONING_FORMATS, TOOL_FORMATS
from model_output.formats.types import ChatFormats, Tool

MAX_CHARACTERS = 256 << 10
"""The longest grammar: a notation whose arguments stand alone repeats what they refer to for each of them."""
_TEXT = "/(?s:.*)/"
_SPACE = r"/\s{0,4}/"


def forced_calls(
    formats: ChatFormats,
    tools: Sequence[Tool],
    *,
    parallel: bool = True,
    reasoning_open: bool = False,
    special_tokens: Mapping[str, int] | None = None,
) -> str:
    """Return the grammar of outputs that call at least one of `tools`, and only one unless `parallel`.

    `reasoning_open` as for `OutputParser`. `special_tokens` has the ids of the vocabulary's special tokens,
    which a grammar cannot spell. Raises `NotForcible`, which names what cannot be guaranteed.
    """
    writer = _Writer(formats, tools, special_tokens or {})
    calls = writer.forced(parallel=parallel)
    return writer.grammar(calls, calls, reasoning_open=reasoning_open)


def guided_calls(
    formats: ChatFormats,
    tools: Sequence[Tool],
    *,
    parallel: bool = True,
    reasoning_open: bool = False,
    special_tokens: Mapping[str, int] | None = None,
) -> str:
    """Return the grammar of outputs that are any text, with calls of `tools` that keep to their schemas.

    Arguments as for `forced_calls`; the schemas of tools that are not strict may be any object's.
    """
    writer = _Writer(formats, tools, special_tokens or {})
    thought_over, at_once = writer.guided(parallel=parallel)
    return writer.grammar(thought_over, at_once, reasoning_open=reasoning_open)


def around_format(
    formats: ChatFormats,
    tools: Sequence[Tool] = (),
    *,
    parallel: bool = True,
    reasoning_open: bool = False,
    special_tokens: Mapping[str, int] | None = None,
) -> str:
    """Return the grammar of outputs in a format, `@format`, or of calls if there are tools.

    Reasoning comes first. Empty if there is nothing but the format. Arguments as for `forced_calls`; with
    tools, the format is one of JSON, and `are_calls_unlike_json` must hold.
    """
    if not (tools or formats.reasoning):
        return ""
    writer = _Writer(formats, tools, special_tokens or {})
    body = writer.formatted()
    if tools:
        body = f"({body} | {writer.forced(parallel=parallel)})"
    return writer.grammar(body, body, reasoning_open=reasoning_open)


def are_calls_unlike_json(formats: ChatFormats) -> bool:
    """Return whether a model writes calls in a known notation that no JSON begins like."""
    return bool(formats.tools) and TOOL_FORMATS[formats.tools].bare != "{"


class _Writer:
    """Writes the grammar of one set of tools."""

    def __init__(self, formats: ChatFormats, tools: Sequence[Tool], special: Mapping[str, int]) -> None:
        self._formats = formats
        self._tools = tools
        self._special = special
        self._rules: list[str] = []
        self._num_characters = 0

    def grammar(self, after_reasoning: str, without: str, *, reasoning_open: bool) -> str:
        """Return the whole grammar, by what follows reasoning, and what there may be instead."""
        thought = self._thought(is_open=reasoning_open)
        start = f"{thought} {after_reasoning}"
        if thought and not reasoning_open:
            start = f"{start} | {without}"
        return "\n".join([f"start: {start}", *self._rules, ""])

    def formatted(self) -> str:
        if HARMONY in {self._formats.reasoning, self._formats.tools}:
            return f"{self._channel(json.dumps('final'))} @format"
        return "@format"

    def forced(self, *, parallel: bool) -> str:
        name = self._formats.tools
        if name == HARMONY:
            return self._to_tool()
        block = f"{self._opening()} {self._block(parallel=parallel)}"
        if not self._is_list() and parallel:
            return _repeated(self._rule("block", block), _BETWEEN[name])
        return block

    def guided(self, *, parallel: bool) -> tuple[str, str]:
        """Return the expressions of free text with calls: after reasoning, and at the beginning.

        A text at the beginning does not begin like reasoning, so that no call in a thought is taken for one.
        """
        if self._formats.tools == HARMONY:
            answer = self._channel('("final" | "commentary")')
            text = f"({answer} {_TEXT} | {self._to_tool()})"
            return text, text
        reasoning = REASONING_FORMATS.get(self._formats.reasoning)
        spelled = [] if reasoning is None else [m for m in reasoning.opens if m not in self._special]
        block = self._block(parallel=parallel)
        return self._text_with(block, [], parallel=parallel), self._text_with(
            block, spelled, parallel=parallel
        )

    def _text_with(self, block: str, thoughts: Sequence[str], *, parallel: bool) -> str:
        """Return the expression of text with blocks of calls that begins with none of `thoughts`."""
        name = self._formats.tools
        form = TOOL_FORMATS[name]
        opens = ("<function=",) if name == "qwen3_coder" else form.opens
        first = _TEXT
        if thoughts or form.bare:
            begins = "|".join([*map(re.escape, thoughts), *([r"[\[{]"] if form.bare else [])])
            first = f"FIRST_{len(self._rules)}"
            self._rules.append(rf"{first}: {_TEXT} & ~/\s*({begins})(?s:.*)/")
        several = parallel and not self._is_list()
        begin = self._rule("block", f"{self._lead(opens, first)} {block}")
        more = self._rule("block", f"{self._lead(opens, _TEXT)} {block}") + f"* {_TEXT}" if several else ""
        text = f"{begin} {more} | {first}"
        if form.bare:
            bare = _repeated(self._rule("block", block), _BETWEEN[name]) if several else block
            text = f"{text} | {bare}"
        return f"({text})"

    def _lead(self, opens: Sequence[str], text: str) -> str:
        """Return text up to a marker of calls, and the marker."""
        tokens = [marker for marker in opens if marker in self._special]
        spelled = [marker for marker in opens if marker not in self._special]
        leads = [self._text_until(markers, text) for markers in (tokens, spelled) if markers]
        return f"({' | '.join(leads)})"

    def _is_list(self) -> bool:
        """Return whether several calls stand in one list, after one marker."""
        name = self._formats.tools
        return name in {"granite", "phi4", "pythonic"} or (name == "mistral" and not self._has_args_marker())

    def _has_args_marker(self) -> bool:
        return "[ARGS]" in self._special

    def _opening(self) -> str:
        form = TOOL_FORMATS[self._formats.tools]
        if form.bare:
            return ""
        if self._formats.tools == "qwen3_coder":
            return f'{self._one_of(form.opens[:1])} "\\n<function="'
        return self._one_of(form.opens[:1])

    def _block(self, *, parallel: bool) -> str:
        """Return what follows the marker of calls."""
        form = TOOL_FORMATS[self._formats.tools]
        end = self._one_of(form.closes[:1]) if form.closes else ""
        if self._is_list():
            call = self._python if self._formats.tools == "pythonic" else self._object
            calls = self._any(call)
            several = _repeated(calls, ", ") if parallel else calls
            space = '" "? ' if self._formats.tools == "mistral" else ""
            return f'{space}"[" {several} "]" {end if self._formats.tools == "phi4" else ""}'
        match self._formats.tools:
            case "hermes":
                return f'"\\n" {self._any(self._object)} "\\n" {end}'
            case "qwen3_coder":
                return f'{self._any(self._function)} "</function>\\n" {end}'
            case "mistral":
                return self._any(self._named)
            case name:
                assert name == "llama3_json", name
                return self._any(self._object)

    def _any(self, call: Callable[[Tool], str]) -> str:
        return self._rule("call", " | ".join(self._rule("tool", call(tool)) for tool in self._tools))

    def _object(self, tool: Tool) -> str:
        key = "parameters" if self._formats.tools == "llama3_json" else "arguments"
        begin = f'{{"name": {json.dumps(tool.name)}, "{key}": '
        return f'{json.dumps(begin)} {json_arguments(tool)} "}}"'

    def _named(self, tool: Tool) -> str:
        return f"{json.dumps(tool.name)} {self._one_of(['[ARGS]'])} {json_arguments(tool)}"

    def _python(self, tool: Tool) -> str:
        return f'{json.dumps(tool.name)} "(" {keyword_arguments(tool, self._rule)} ")"'

    def _function(self, tool: Tool) -> str:
        return f"{json.dumps(tool.name + '>' + chr(10))} {tagged_arguments(tool, self._rule)}"

    def _to_tool(self) -> str:
        def message(tool: Tool) -> str:
            header = json.dumps(f"commentary to=functions.{tool.name} ")
            tokens = [self._one_of([token]) for token in ("<|channel|>", "<|constrain|>", "<|message|>")]
            return f'{tokens[0]} {header} {tokens[1]} "json" {tokens[2]} {json_arguments(tool)}'

        return self._any(message)

    def _channel(self, name: str) -> str:
        return f"{self._one_of(['<|channel|>'])} {name} {self._one_of(['<|message|>'])}"

    def _thought(self, *, is_open: bool) -> str:
        name = self._formats.reasoning
        if HARMONY in {name, self._formats.tools}:
            next_message = f'{self._one_of(["<|start|>"])} "assistant"'
            body = f"{self._text_until(['<|end|>'])} {next_message}"
            thoughts = self._rule("thought", f"{self._channel(json.dumps('analysis'))} {body}") + "*"
            return f"{body} {thoughts}" if is_open else thoughts
        if not name:
            return ""
        form = REASONING_FORMATS[name]
        body = f"{self._text_until(form.closes)} {_SPACE}"
        return body if is_open else f"{self._one_of(form.opens)} {body}"

    def _text_until(self, markers: Sequence[str], text: str = _TEXT) -> str:
        """Return any text up to one of the markers, and the marker."""
        spelled = [json.dumps(marker) for marker in markers if marker not in self._special]
        if len(spelled) < len(markers):
            return f"{text} {self._one_of(markers)}"
        return self._rule("text", f"{text} ({' | '.join(spelled)})", "[lazy]")

    def _one_of(self, markers: Sequence[str]) -> str:
        """Return one of the markers: those that are tokens of their own, if any are."""
        tokens = [f"<[{self._special[marker]}]>" for marker in markers if marker in self._special]
        return "(" + " | ".join(tokens or map(json.dumps, markers)) + ")"

    def _rule(self, kind: str, body: str, options: str = "") -> str:
        """Add a rule and return its name. Raises `NotForcible` at once if the rules become too long."""
        self._num_characters += len(body)
        if self._num_characters > MAX_CHARACTERS:
            raise NotForcible(
                f"the grammar of all calls has more than {MAX_CHARACTERS} characters, "
                "in which each parameter repeats the definitions that it refers to"
            )
        name = f"{kind}_{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name


_BETWEEN = {"hermes": "\n", "qwen3_coder": "\n", "llama3_json": "; ", "mistral": ""}


def _repeated(item: str, separator: str) -> str:
    more = f"({json.dumps(separator)} {item})*" if separator else f"{item}*"
    return f"{item} {more}"
