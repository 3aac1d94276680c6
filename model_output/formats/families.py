"""The formats by name, and which one a model has."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from model_output.formats.types import ChatFormats

HARMONY = "harmony"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls stand in a text.

    opens    what comes before calls; which notation follows shows at its first character
    closes   what may come after them
    bare     a message that begins with this character may consist of calls, without a marker
    controls other tokens of the family that mean nothing to a reader
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...] = ()
    bare: str = ""
    controls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How reasoning stands at the beginning of a text; `controls` as in `ToolFormat`."""

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    controls: tuple[str, ...] = ()


_LLAMA = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
)
_MISTRAL = (
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
)
_GRANITE = ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>")
_PHI = ("<|end|>", "<|endoftext|>", "<|assistant|>", "<|user|>", "<|system|>")

TOOL_FORMATS: dict[str, ToolFormat] = {
    "granite": ToolFormat(("<|tool_call|>", "<tool_call>"), ("</tool_call>",), controls=_GRANITE),
    HARMONY: ToolFormat(()),
    "hermes": ToolFormat(("<tool_call>",), ("</tool_call>",)),
    "llama3_json": ToolFormat(("<|python_tag|>",), bare="{", controls=_LLAMA),
    "mistral": ToolFormat(("[TOOL_CALLS]",), controls=_MISTRAL),
    "phi4": ToolFormat(("<|tool_call|>",), ("<|/tool_call|>",), controls=_PHI),
    "pythonic": ToolFormat(
        ("<|python_start|>", "<|python_tag|>"), ("<|python_end|>",), bare="[", controls=_LLAMA
    ),
    "qwen3_coder": ToolFormat(("<tool_call>", "<function="), ("</tool_call>",)),
}
REASONING_FORMATS: dict[str, ReasoningFormat] = {
    "granite": ReasoningFormat(
        ("<think>", "Here is my thought process:", "Here's my thought process:"),
        ("</think>", "Here is my response:", "Here's my response:"),
        ("<response>", "</response>"),
    ),
    HARMONY: ReasoningFormat((), ()),
    "mistral": ReasoningFormat(("[THINK]",), ("[/THINK]",), _MISTRAL),
    "think": ReasoningFormat(("<think>",), ("</think>",)),
}
HARMONY_CONTROLS = (
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|return|>",
    "<|call|>",
)
_HARMONY_REASONING = ReasoningFormat(
    ("<|channel|>analysis<|message|>",), ("<|channel|>final<|message|>", "<|channel|>commentary")
)
"""Analysis ends where a message in another channel begins."""

_IN_TEMPLATE = (
    ("<|channel|>", HARMONY),
    ("[TOOL_CALLS]", "mistral"),
    ("<function=", "qwen3_coder"),
    ("<|python_start|>", "pythonic"),
    ("[func_name1(", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary of argument name', "llama3_json"),
    ("<|tool|>", "phi4"),
    ("<|/tool_call|>", "phi4"),
    ("<|tool_call|>", "granite"),
    ("<tool_call>", "hermes"),
)
"""Texts by which a template shows its model's format of calls, the telling ones first."""
_REASONING_IN_TEMPLATE = (
    ("<|channel|>", HARMONY),
    ("[THINK]", "mistral"),
    ("Here is my thought process", "granite"),
    ("<response>", "granite"),
    ("</think>", "think"),
    ("<think>", "think"),
)


def formats_of(model_type: str, chat_template: str | None) -> ChatFormats:
    """Return how a model writes tool calls and reasoning, by what its template shows of both."""
    template = chat_template or ""
    if model_type == "gpt_oss":
        return ChatFormats(HARMONY, HARMONY)
    return ChatFormats(_first(_IN_TEMPLATE, template), _first(_REASONING_IN_TEMPLATE, template))


def _first(signs: tuple[tuple[str, str], ...], template: str) -> str:
    return next((name for sign, name in signs if sign in template), "")


def special_markers(formats: ChatFormats, special_tokens: Collection[str]) -> frozenset[str]:
    """Return the markers that are special tokens of a vocabulary.

    If there are some, the text has to be asked for with its special tokens; `OutputParser` leaves out those
    that mark nothing.
    """
    markers: set[str] = set()
    if HARMONY in {formats.tools, formats.reasoning}:
        markers.update(HARMONY_CONTROLS)
    if formats.tools:
        tools = TOOL_FORMATS[formats.tools]
        markers.update(tools.opens, tools.closes)
    if formats.reasoning:
        reasoning = REASONING_FORMATS[formats.reasoning]
        markers.update(reasoning.opens, reasoning.closes)
    return frozenset(markers.intersection(special_tokens))


def reasoning_marks(formats: ChatFormats, *, is_open: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the texts that open and close the reasoning at the beginning of an output.

    Nothing opens it if the prompt has, `is_open`; nothing closes it either if the model writes none.
    """
    if HARMONY in {formats.tools, formats.reasoning}:
        form = _HARMONY_REASONING
    elif formats.reasoning:
        form = REASONING_FORMATS[formats.reasoning]
    else:
        return (), ()
    return () if is_open else form.opens, form.closes


def is_reasoning_open(formats: ChatFormats, prompt: str, continued: str = "") -> bool:
    """Return whether a prompt ends inside reasoning.

    `continued` is the text of the assistant's last message if the prompt continues it. Reasoning in the
    messages before is over, and words of other people are none.
    """
    if formats.reasoning == HARMONY:
        return prompt.endswith("<|channel|>analysis<|message|>" + continued)
    if not formats.reasoning:
        return False
    form = REASONING_FORMATS[formats.reasoning]
    if continued:
        return max(map(continued.rfind, form.opens)) > max(map(continued.rfind, form.closes))
    return prompt.rstrip().endswith(form.opens)
