"""How models write tool calls and reasoning in their text: Llama, Qwen, Mistral, gpt-oss, Granite and Phi.

In reading order:

- `types`: tools, formats and deltas; `families`: the formats by name, and which one a model has.
- `parser`: takes a choice's text apart as it comes; `output`: gathers its deltas; `source`: text in pieces.
- `grammar`, `argument_grammar`: outputs that are forced to call, whose calls keep to their schemas, or that
  think before they keep to a format.
- `calls`: the notations of calls; `values`: their values as JSON; `schemas`: their types;
  `harmony`: the channels of gpt-oss.

The router reads every text; no client does. Imports only Python's own library.
"""

from model_output.formats.argument_grammar import NotForcible
from model_output.formats.families import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    formats_of,
    is_reasoning_open,
    reasoning_marks,
    special_markers,
)
from model_output.formats.grammar import are_calls_unlike_json, around_format, forced_calls, guided_calls
from model_output.formats.parser import OutputParser
from model_output.formats.types import (
    Call,
    ChatFormats,
    ContentDelta,
    Delta,
    Message,
    ReasoningDelta,
    Tool,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)

__all__ = [
    "REASONING_FORMATS",
    "TOOL_FORMATS",
    "Call",
    "ChatFormats",
    "ContentDelta",
    "Delta",
    "Message",
    "NotForcible",
    "OutputParser",
    "ReasoningDelta",
    "Tool",
    "ToolCallArguments",
    "ToolCallBegun",
    "ToolCallEnded",
    "are_calls_unlike_json",
    "around_format",
    "forced_calls",
    "formats_of",
    "guided_calls",
    "is_reasoning_open",
    "reasoning_marks",
    "special_markers",
]
