"""Parse arguments' values. argparse puts the argument's name before the messages raised here."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baton.types.chat import NamedTool, Tool, ToolChoice, ToolMode

# HOST:PORT as gRPC takes it: a name, an IPv4 address, or an IPv6 one in brackets.
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")


def decimal(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _whole_from(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is too small: it must be {least} or more")
        return value

    return parse


count = _whole_from(1)
unsigned = _whole_from(0)
"""The fleet checks upper limits."""


def seconds(text: str) -> float:
    """Return a number of seconds over 0, and finite."""
    value = decimal(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a time to wait: it must be over 0 seconds")
    return value


def address(text: str) -> str:
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:50051")
    return text


def bias(text: str) -> tuple[int, float]:
    """Return a token id and its bias."""
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=X, such as 17=-2.5") from None


def json_text(text: str) -> str:
    """Return JSON that is given as it is or as the name of a file with it."""
    given = text if text.lstrip()[:1] in {"{", "["} else _content(text)
    try:
        json.loads(given)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON, nor a file with JSON: {error}") from None
    return given


def text_or_file(text: str) -> str:
    """Return a text that is given as it is or as the name of a file with it."""
    return text if "\n" in text or not Path(text).is_file() else _content(text)


def tools(text: str) -> tuple[Tool, ...]:
    """Return the tools in a file: a list of them, bare or as OpenAI's clients write them."""
    accepted = f'{text!r} does not contain a list of tools such as {{"name": "f", "parameters": {{}}}}'
    found = json.loads(json_text(text))
    try:
        return tuple(_tool(each.get("function", each)) for each in found)
    except (AttributeError, KeyError, TypeError):
        raise argparse.ArgumentTypeError(accepted) from None


def _tool(given: dict[str, Any]) -> Tool:
    return Tool(
        given["name"], given.get("description", ""), given.get("parameters", {}), bool(given.get("strict"))
    )


def tool_choice(text: str) -> ToolChoice:
    """Return a mode, or the tool of this name."""
    return ToolMode(text) if text in set(ToolMode) else NamedTool(text)


def _content(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise argparse.ArgumentTypeError(f"{name!r} cannot be read: {reason}") from None


def named_json(text: str) -> tuple[str, Any]:
    """Return a variable's name and value."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=JSON, such as enable_thinking=false"
        ) from None
