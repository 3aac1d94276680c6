"""Writes down what entered a core, so that it can be decided again.

A recording is JSON lines. The first names the version, every type's fields and the core's configuration; then
one line per event:

    [time, event, digest of the actions, CRC-32 of the line before it]

and a last one that counts the events. `router.replay` reads it. Whoever takes a recording has all prompts.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from router.core.actions import Action
from router.core.events import Event
from router.core.state import CoreConfig
from router.errors import Refused, RouterError
from router.replay.codec import Codec
from scheduling import policies
from scheduling.policies.policy import Policy
from services.process.background import BackgroundWriter, open_unblocked

FORMAT = "baton recording"
VERSION = 1
_BUFFER_CHARS = 1 << 20
CHARS_PER_TURN = 1 << 18
"""Characters written in one turn of the event loop, plus one event: some milliseconds."""
_WRITTEN_AFTER_S = 1.0
"""What a killed router loses of its recording."""
MAX_WAITING_BYTES = 64 << 20
"""What a disk that stands still may leave in memory; beyond, the recording ends."""
_LAST_WORDS_S = 10.0
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
_encode_action, _ = Codec(dict.fromkeys((RouterError, Refused), (_told, _untold))).of(Action)


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
    """Takes events on the event loop; a thread writes them once their actions are under way.

    When the file cannot be written, or not as fast as events come, `failed` is called once, on the
    event loop, and nothing more is recorded. Raises `OSError` where it cannot be opened.
    """

    def __init__(self, path: Path, config: CoreConfig, failed: Callable[[OSError], None]) -> None:
        self._fd = open_unblocked(path)
        self._writer = BackgroundWriter(self._fd, MAX_WAITING_BYTES, self._note)
        self._failed = failed
        self._error: OSError | None = None
        self._taken: list[tuple[Event, float, Sequence[Action]]] = []
        self._texts = [header(config)]
        self._num_chars = 0
        self._num_events = 0
        self._closed = False
        self._written_at = 0.0

    def take(self, event: Event, now: float, actions: Sequence[Action]) -> None:
        """What came in, and what was decided on it; nothing more after `close`."""
        if self._closed:
            return
        if not self._taken:
            asyncio.get_running_loop().call_soon(self.flush)
        self._taken.append((event, now, actions))

    def flush(self) -> None:
        """Write what was taken, as much as one turn has time for; the rest in the next ones."""
        taken, self._taken = self._taken, []
        if not taken or self._closed:
            return
        num_lines = num_chars = 0
        for one in taken:
            text = line(*one)
            self._texts.append(text)
            num_lines += 1
            num_chars += len(text)
            if num_chars > CHARS_PER_TURN:
                break
        now = taken[num_lines - 1][1]
        self._taken = taken[num_lines:]
        if self._taken:
            asyncio.get_running_loop().call_soon(self.flush)
        self._num_events += num_lines
        self._num_chars += num_chars
        if now - self._written_at > _WRITTEN_AFTER_S or self._num_chars > _BUFFER_CHARS:
            self._written_at = now
            self._hand_over()

    def close(self) -> None:
        """Write the last line, and wait for the file, not for ever."""
        while self._taken and not self._closed:
            self.flush()
        self._texts.append(footer(self._num_events))
        self._hand_over()
        written = self._writer.close(_LAST_WORDS_S)
        self._end_on(self._error or (None if written else _too_slow()))
        self._closed = True
        if written:  # else the thread still has it
            os.close(self._fd)

    def _hand_over(self) -> None:
        self._end_on(self._error)
        if self._closed:
            return
        text, self._texts, self._num_chars = "".join(self._texts), [], 0
        if not self._writer.write(text):
            self._end_on(_too_slow())

    def _note(self, error: OSError) -> None:
        """On the writer's thread."""
        self._error = self._error or error

    def _end_on(self, error: OSError | None) -> None:
        if error is not None and not self._closed:
            self._closed = True
            self._failed(error)


def _too_slow() -> OSError:
    return OSError(errno.EAGAIN, "it is not written as fast as events come")
