"""Writes down what entered a core, so that it can be decided again.

A recording is JSON lines. The first names the version, every type's fields and the core's configuration; then
one line per event:

    [time, event, digest of the actions, CRC-32 of the line before it]

and a last one that counts the events. `router.replay` reads it. Whoever takes a recording has all prompts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from router.actions import Action
from router.book import CoreConfig
from router.codec import Codec
from router.errors import RouterError
from router.events import Event
from scheduling import policies
from scheduling.policies.policy import Policy

FORMAT = "baton recording"
VERSION = 1
_BUFFER_BYTES = 1 << 20
_WRITTEN_AFTER_S = 1.0
"""What a killed router loses of its recording."""
# Made once: json.dumps would make one per line. Rows hold no circles.
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def _told(error: RouterError) -> list[Any]:
    return [type(error).__name__, str(error)]


def _untold(_: Any) -> RouterError:
    raise ValueError("actions are only digested, never read")


_codec = Codec({Policy: (lambda policy: policy.name, policies.by_name)})
encode_event, decode_event = _codec.of(Event)
encode_config, decode_config = _codec.of(CoreConfig)
SCHEMA = _codec.schema
"""The fields of every type that a recording holds."""
_encode_action, _ = Codec({RouterError: (_told, _untold)}).of(Action)


def digest(actions: Sequence[Action]) -> str:
    """Names what was decided; empty when nothing was."""
    if not actions:
        return ""
    text = _to_json([_encode_action(action) for action in actions])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def header(config: CoreConfig) -> str:
    """The first line."""
    said = {"format": FORMAT, "version": VERSION, "types": SCHEMA, "config": encode_config(config)}
    return json.dumps(said) + "\n"


def line(event: Event, now: float, actions: Sequence[Action]) -> str:
    """One event's line."""
    text = _to_json((now, encode_event(event), digest(actions)))[:-1]
    return f'{text},"{zlib.crc32(text.encode()):08x}"]\n'


def footer(num_events: int) -> str:
    """The last line."""
    return json.dumps({"events": num_events}) + "\n"


class Recorder:
    """Takes events on the event loop and writes them once their actions are under way.

    When the file cannot be written, `failed` is called once and nothing more is recorded.
    """

    def __init__(self, path: Path, config: CoreConfig, failed: Callable[[OSError], None]) -> None:
        self._file = path.open("w", encoding="ascii", buffering=_BUFFER_BYTES)
        self._failed = failed
        self._taken: list[tuple[Event, float, Sequence[Action]]] = []
        self._num_events = 0
        self._broken = False
        self._written_at = 0.0
        self._write(header(config))

    def take(self, event: Event, now: float, actions: Sequence[Action]) -> None:
        """What came in, and what was decided on it; nothing more after `close`."""
        if self._file.closed:
            return
        if not self._taken:
            asyncio.get_running_loop().call_soon(self.flush)
        self._taken.append((event, now, actions))

    def flush(self) -> None:
        """Write what was taken."""
        taken, self._taken = self._taken, []
        if not taken:
            return
        self._num_events += len(taken)
        self._write("".join(line(*one) for one in taken))
        now = taken[-1][1]
        if now - self._written_at > _WRITTEN_AFTER_S:
            self._written_at = now
            self._write("", through=True)

    def close(self) -> None:
        """Write the last line."""
        self.flush()
        self._write(footer(self._num_events))
        try:
            self._file.close()
        except OSError as error:
            self._give_up(error)

    def _write(self, text: str, *, through: bool = False) -> None:
        if self._broken:
            return
        try:
            self._file.write(text)
            if through:
                self._file.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if not self._broken:
            self._broken = True
            self._failed(error)
