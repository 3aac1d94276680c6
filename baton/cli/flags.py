"""Flags as data: by a flag's name, what `argparse` is told about it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Flag = dict[str, Any]
Flags = Mapping[str, Flag]
"""In the order in which `--help` shows them. A name without dashes is an argument that has its place."""


def flag(metavar: str, kind: Callable[[str], Any], what: str, **more: Any) -> Flag:
    """Return a flag with a value."""
    return {"metavar": metavar, "type": kind, "help": what, **more}


def several(metavar: str, kind: Callable[[str], Any], what: str, **more: Any) -> Flag:
    """Return a flag that may be repeated; its values are a list."""
    return flag(metavar, kind, what, action="append", default=[], **more)


def choice(accepted: Sequence[str], what: str, **more: Any) -> Flag:
    """Return a flag with one of some values."""
    return {"choices": accepted, "help": what, **more}


def switch(what: str, **more: Any) -> Flag:
    """Return a flag without a value."""
    return {"action": "store_true", "help": what, **more}


def add_flags(to: argparse._ActionsContainer, flags: Flags) -> None:
    for name, details in flags.items():
        to.add_argument(name, **details)
