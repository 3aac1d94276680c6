"""Decide recordings again: a fresh core must decide what the recorded one did.

    python -m router.replay FILE...

For each recording it prints whether all decisions are identical, or the first that is not, with the actions
decided now. Exit codes: 0 identical, 1 different, 2 not a complete recording.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from router.core.core import RouterCore
from router.core.model.actions import Action
from router.core.model.events import Event
from router.core.model.state import CoreConfig
from router.replay.recording import FORMAT, SCHEMA, VERSION, decode_config, decode_event, digest

_CRC_CHARS = len(',"01234567"]')


class RecordingError(ValueError):
    """A line, counted from 1, is not what a recorder wrote."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One event that entered the core, and the digest of the actions."""

    line: int
    now: float
    event: Event
    digest: str


@dataclass(frozen=True, slots=True)
class Decided:
    """One event decided again."""

    recorded: Recorded
    actions: Sequence[Action]

    @property
    def identical(self) -> bool:
        """Whether the actions are those of the first time."""
        return digest(self.actions) == self.recorded.digest


def read(lines: Iterable[str]) -> tuple[CoreConfig, Iterator[Recorded]]:
    """Return the configuration and the events. Raises `RecordingError` at a damaged or missing line."""
    numbered = enumerate(lines, start=1)
    first = next(numbered, None)
    if first is None:
        raise RecordingError(1, "the recording is empty")
    return _config(first[1]), _events(numbered)


def replay(lines: Iterable[str]) -> Iterator[Decided]:
    """Yield every event of a recording, decided by a fresh core."""
    config, events = read(lines)
    core = RouterCore(config)
    for recorded in events:
        yield Decided(recorded, core.on(recorded.event, recorded.now))


def _config(text: str) -> CoreConfig:
    header = _json(1, text)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise RecordingError(1, f"this does not begin like a recording; accepted: format {FORMAT!r}")
    if header.get("version") != VERSION:
        raise RecordingError(1, f"version is {header.get('version')!r}; accepted: {VERSION}")
    types = header.get("types")
    for name, fields in SCHEMA.items():
        found = types.get(name) if isinstance(types, dict) else None
        if found != fields:
            raise RecordingError(1, f"{name} was recorded with fields {found}; accepted: {fields}")
    try:
        config: CoreConfig = decode_config(header.get("config"))
    except (ValueError, TypeError) as error:
        raise RecordingError(1, f"config: {error}") from error
    return config


def _events(numbered: Iterable[tuple[int, str]]) -> Iterator[Recorded]:
    count, number = 0, 1
    for number, text in numbered:
        row = _json(number, text)
        if isinstance(row, dict):
            _check_footer(number, row, count)
            if (after := next(iter(numbered), None)) is not None:
                raise RecordingError(after[0], "there is more after the end")
            return
        yield _event(number, text, row)
        count += 1
    raise RecordingError(number, f"the recording breaks off after {count} events; its last line is missing")


def _check_footer(number: int, footer: dict[str, Any], count: int) -> None:
    if footer != {"events": count}:
        raise RecordingError(
            number, f"the last line is {footer}; accepted: {{'events': {count}}}, the lines read"
        )


def _event(number: int, text: str, row: Any) -> Recorded:
    body = text.rstrip("\n")[:-_CRC_CHARS]
    if not isinstance(row, list) or len(row) != 4 or row[3] != f"{zlib.crc32(body.encode()):08x}":
        raise RecordingError(number, "the line is damaged: its checksum does not match")
    try:
        return Recorded(number, row[0], decode_event(row[1]), row[2])
    except (ValueError, TypeError) as error:
        raise RecordingError(number, str(error)) from error


def _json(number: int, text: str) -> Any:
    if not text.endswith("\n"):
        raise RecordingError(number, "the recording breaks off in the middle of this line")
    try:
        return json.loads(text)
    except ValueError as error:
        raise RecordingError(number, f"the line is damaged: {error}") from error


def compare(path: Path) -> tuple[bool, str]:
    """Return whether all decisions are identical, and a sentence about it. Raises like `read` and `open`."""
    num_events = num_actions = num_different = 0
    first: Decided | None = None
    with path.open(encoding="ascii") as lines:
        for decided in replay(lines):
            num_events += 1
            num_actions += len(decided.actions)
            if not decided.identical:
                num_different += 1
                first = first or decided
    if first is None:
        return True, f"{path}: identical, {num_events} events, {num_actions} actions"
    kind = type(first.recorded.event).__name__
    done = ", ".join(type(action).__name__ for action in first.actions) or "nothing"
    return False, (
        f"{path}: different, {num_different} of {num_events} events; the first in line "
        f"{first.recorded.line}, {kind} at {first.recorded.now:.6f} s, decided now: {done}"
    )


def main(typed: Sequence[str] | None = None) -> int:
    """Print a line for each file and return the exit code."""
    code = 0
    for path in flags().parse_args(typed).files:
        try:
            is_identical, sentence = compare(path)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"{path}: {error}\n")
            code = 2
        else:
            sys.stdout.write(sentence + "\n")
            code = max(code, 0 if is_identical else 1)
    return code


def flags() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m router.replay", description="Decide recordings again.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a recording made by --record")
    return parser
