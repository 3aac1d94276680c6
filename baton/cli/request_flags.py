"""The flags of one request: what it may say, how it samples, when it stops, and which promise it asks for.

Each flag's value has the name of a field of `Sampling`, `Stop` or `Slo`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from baton.cli.flags import Flags, add_flags, choice, flag, several, switch
from baton.cli.values import bias, decimal, json_text, text_or_file, tool_choice, tools, unsigned
from baton.types import Grammar, JsonSchema, OneOf, OutputFormat, Regex, Sampling, Slo, SloClass, Stop
from baton.types.chat import Chat, ChatMessage
from baton.wire.fields import names_of

_milliseconds = partial(flag, "MS", unsigned)
_format = partial(flag, dest="output_format")


def _schema(text: str) -> OutputFormat:
    return JsonSchema(json_text(text))


def _grammar(text: str) -> OutputFormat:
    return Grammar(text_or_file(text))


_FORMAT: Flags = {
    "--schema": _format("FILE|JSON", _schema, "the answer is JSON that validates against this schema"),
    "--regex": _format("REGEX", Regex, "the answer matches this regular expression, in Rust's syntax"),
    "--grammar": _format(
        "FILE|TEXT", _grammar, "the answer is what start derives in this Lark, or root in this EBNF"
    ),
    "--choice": several("TEXT", str, "the answer is this text, or that of another --choice; repeatable"),
}
"""A request has at most one of these."""
_GROUPS: dict[str, Flags] = {
    "tools": {
        "--tools": flag("FILE", tools, "tools that a chat may call, a JSON list", default=()),
        "--tool-choice": flag("auto|none|required|NAME", tool_choice, "which of them to call (auto)"),
    },
    "sampling": {
        "--temperature": flag("T", decimal, "0 always takes the most likely token (1)"),
        "--top-k": flag("K", unsigned, "keep the K most likely tokens; 0 keeps all (0)"),
        "--top-p": flag("P", decimal, "keep the smallest set of tokens with probability P (1)"),
        "--min-p": flag("P", decimal, "drop tokens below P times the most likely one (0)"),
        "--repetition-penalty": flag("X", decimal, "divides logits of tokens seen so far (1)"),
        "--presence-penalty": flag("X", decimal, "subtracted once from tokens of the answer (0)"),
        "--frequency-penalty": flag("X", decimal, "subtracted for each occurrence so far (0)"),
        "--logit-bias": several("ID=X", bias, "add X to the logit of one token; repeatable"),
        "--allowed-token-id": several(
            "ID", unsigned, "draw only this token; repeatable", dest="allowed_token_ids"
        ),
        "--bad-word": several("TEXT", str, "never complete this word; repeatable", dest="bad_words"),
        "--seed": flag("N", unsigned, "the same seed draws the same answer (drawn by the router)"),
        "--logprobs": flag("N", unsigned, "show log-probabilities, with N alternatives for each token"),
        "--prompt-logprobs": flag("N", unsigned, "the same for the prompt; needs --json"),
    },
    "stopping": {
        "--max-tokens": flag("N", unsigned, "the most tokens of an answer (256)"),
        "--min-tokens": flag("N", unsigned, "the fewest tokens of an answer (0)", default=0),
        "--stop": several("TEXT", str, "end before this text; repeatable", dest="strings"),
        "--stop-token-id": several("ID", unsigned, "end with this token; repeatable", dest="token_ids"),
        "--ignore-eos": switch("continue past the model's end of sequence"),
        "--include-stop": switch("keep the stop string or token in the text"),
        "--show-special-tokens": switch(
            "show special tokens, such as the end of sequence",
            action="store_const",
            const=False,
            dest="skip_special_tokens",
        ),
    },
    "promises": {
        "--ttft-ms": _milliseconds("promise for the first token"),
        "--tpot-ms": _milliseconds("promise for the mean time between later tokens"),
        "--itl-ms": _milliseconds("promise for each gap between later tokens"),
        "--deadline-ms": _milliseconds("end the request after this time"),
        "--class": choice(
            tuple(map(str, SloClass)),
            "the class; interactive goes before standard, standard before batch (standard)",
            default=str(SloClass.STANDARD),
            dest="slo_class",
        ),
        "--allow-at-risk": switch("accept even if the promise will be missed"),
    },
}


def add_request_flags(command: argparse.ArgumentParser) -> None:
    add_flags(command, {"--adapter": flag("NAME", str, "a LoRA adapter of the fleet's (none)", default="")})
    add_flags(command.add_argument_group("format").add_mutually_exclusive_group(), _FORMAT)
    for title, flags in _GROUPS.items():
        add_flags(command.add_argument_group(title), flags)


def request_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a call that the flags give, besides its prompt."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(args).items()}
    values |= {"logit_bias": dict(args.logit_bias), "slo_class": SloClass(args.slo_class)}
    parts = {"sampling": Sampling, "stop": Stop, "slo": Slo}
    request = {
        part: kind(**{name: values[name] for name in names_of(kind) if name in values})
        for part, kind in parts.items()
    }
    output_format = OneOf(values["choice"]) if args.choice else args.output_format
    return request | {"output_format": output_format, "adapter": args.adapter}


def chat_of(args: argparse.Namespace, messages: Sequence[ChatMessage]) -> Chat:
    """Return a chat with the flags' tools and template arguments; only a user's message forces calls."""
    is_asked = bool(messages) and messages[-1].role == "user"
    return Chat(
        messages,
        dict(args.template_argument),
        tools=args.tools,
        tool_choice=args.tool_choice if is_asked else None,
    )
