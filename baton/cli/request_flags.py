"""The flags of one request: what it may say, how it samples, when it stops, and which promise it asks for.

Each flag's value has the name of a field of `Sampling`, `Stop` or `Slo`.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from baton.cli.values import bias, decimal, json_text, text_or_file, tool_choice, tools, unsigned
from baton.types import Grammar, JsonSchema, OneOf, OutputFormat, Regex, Sampling, Slo, SloClass, Stop
from baton.types.chat import Chat, ChatMessage


def add_request_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("--adapter", default="", metavar="NAME", help="a LoRA adapter of the fleet's (none)")
    _add_format(command.add_argument_group("format").add_mutually_exclusive_group())
    _add_tools(command.add_argument_group("tools"))
    _add_sampling(command.add_argument_group("sampling"))
    _add_stop(command.add_argument_group("stopping"))
    _add_slo(command.add_argument_group("promises"))


def _add_format(group: argparse._MutuallyExclusiveGroup) -> None:
    def add(flag: str, kind: Callable[[str], OutputFormat], metavar: str, what: str) -> None:
        group.add_argument(flag, dest="output_format", type=kind, metavar=metavar, help=what)

    def schema(text: str) -> OutputFormat:
        return JsonSchema(json_text(text))

    def grammar(text: str) -> OutputFormat:
        return Grammar(text_or_file(text))

    add("--schema", schema, "FILE|JSON", "the answer is JSON that validates against this schema")
    add("--regex", Regex, "REGEX", "the answer matches this regular expression, in Rust's syntax")
    add(
        "--grammar",
        grammar,
        "FILE|TEXT",
        "the answer is what start derives in this Lark, or root in this EBNF",
    )
    _add_list(group, "--choice", str, "TEXT", "the answer is this text, or that of another --choice")


def _add_tools(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--tools", type=tools, default=(), metavar="FILE", help="tools that a chat may call, a JSON list")
    add(
        "--tool-choice",
        type=tool_choice,
        metavar="auto|none|required|NAME",
        help="which of them to call (auto)",
    )


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--temperature", type=decimal, metavar="T", help="0 always takes the most likely token (1)")
    add("--top-k", type=unsigned, metavar="K", help="keep the K most likely tokens; 0 keeps all (0)")
    add("--top-p", type=decimal, metavar="P", help="keep the smallest set of tokens with probability P (1)")
    add("--min-p", type=decimal, metavar="P", help="drop tokens below P times the most likely one (0)")
    add("--repetition-penalty", type=decimal, metavar="X", help="divides logits of tokens seen so far (1)")
    add("--presence-penalty", type=decimal, metavar="X", help="subtracted once from tokens of the answer (0)")
    add("--frequency-penalty", type=decimal, metavar="X", help="subtracted for each occurrence so far (0)")
    _add_list(group, "--logit-bias", bias, "ID=X", "add X to the logit of one token")
    _add_list(group, "--allowed-token-id", unsigned, "ID", "draw only this token", dest="allowed_token_ids")
    _add_list(group, "--bad-word", str, "TEXT", "never complete this word", dest="bad_words")
    add(
        "--seed", type=unsigned, metavar="N", help="the same seed draws the same answer (drawn by the router)"
    )
    shown = "show log-probabilities, with N alternatives for each token"
    add("--logprobs", type=unsigned, metavar="N", help=shown)
    add("--prompt-logprobs", type=unsigned, metavar="N", help="the same for the prompt; needs --json")


def _add_stop(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--max-tokens", type=unsigned, metavar="N", help="the most tokens of an answer (256)")
    add("--min-tokens", type=unsigned, default=0, metavar="N", help="the fewest tokens of an answer (0)")
    _add_list(group, "--stop", str, "TEXT", "end before this text", dest="strings")
    _add_list(group, "--stop-token-id", unsigned, "ID", "end with this token", dest="token_ids")
    add("--ignore-eos", action="store_true", help="continue past the model's end of sequence")
    add("--include-stop", action="store_true", help="keep the stop string or token in the text")
    add(
        "--show-special-tokens",
        action="store_const",
        const=False,
        dest="skip_special_tokens",
        help="show special tokens, such as the end of sequence",
    )


def _add_slo(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--ttft-ms", type=unsigned, metavar="MS", help="promise for the first token")
    add("--tpot-ms", type=unsigned, metavar="MS", help="promise for the mean time between later tokens")
    add("--itl-ms", type=unsigned, metavar="MS", help="promise for each gap between later tokens")
    add("--deadline-ms", type=unsigned, metavar="MS", help="end the request after this time")
    add(
        "--class",
        dest="slo_class",
        choices=[str(slo_class) for slo_class in SloClass],
        default=str(SloClass.STANDARD),
        help="the class; interactive goes before standard, standard before batch (standard)",
    )
    add("--allow-at-risk", action="store_true", help="accept even if the promise will be missed")


def _add_list(
    group: argparse._ActionsContainer,
    flag: str,
    kind: Any,
    metavar: str,
    summary: str,
    dest: str | None = None,
) -> None:
    what = f"{summary}; repeatable"
    group.add_argument(flag, type=kind, action="append", default=[], metavar=metavar, help=what, dest=dest)


def request_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a call that the flags give, besides its prompt."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(args).items()}
    values |= {"logit_bias": dict(args.logit_bias), "slo_class": SloClass(args.slo_class)}
    parts = {"sampling": Sampling, "stop": Stop, "slo": Slo}
    found = {
        part: kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})
        for part, kind in parts.items()
    }
    output_format = OneOf(values["choice"]) if args.choice else args.output_format
    return found | {"output_format": output_format, "adapter": args.adapter}


def chat_of(args: argparse.Namespace, messages: Sequence[ChatMessage]) -> Chat:
    """Return a chat with the flags' tools and template arguments; only a user's message forces calls."""
    is_asked = bool(messages) and messages[-1].role == "user"
    return Chat(
        messages,
        dict(args.template_argument),
        tools=args.tools,
        tool_choice=args.tool_choice if is_asked else None,
    )
