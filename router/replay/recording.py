"""Record what enters a core, so that it can be decided again.

A recording consists of JSON lines. The first has the version, every type's fields and the core's
configuration. Then there is one line per event:

    [time, event, digest of the actions, CRC-32 of the line so far]

The last line has the number of events. `router.replay` reads recordings. A recording contains all prompts.
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

from router.core.model.actions import Action
from router.core.model.events import Event
from router.core.model.state import CoreConfig
from router.errors import Refused, RouterError
from router.replay.codec import Codec
from runtime.process.log import BackgroundWriter, open_unblocked
from scheduling import policies
from scheduling.policies.policy import Policy

FORMAT = "baton recording"
VERSION = 2
_BUFFER_CHARS = 1 << 20
CHARS_PER_TURN = 1 << 18
"""Characters converted in one turn of the event loop, plus one event: some milliseconds."""
_WRITTEN_AFTER_S = 1.0
"""The part of its recording that a killed router loses."""
MAX_WAITING_BYTES = 64 << 20
"""If more than this waits for a slow disk, the recording ends."""
_CLOSE_TIMEOUT_S = 10.0
# Created once: json.dumps would create one per line. Rows contain no circles.
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def _encode_error(error: RouterError) -> list[Any]:
    return [type(error).__name__, str(error)]


def _never_decoded(_: Any) -> RouterError:
    raise ValueError("actions are only digested, never read")


_codec = Codec({Policy: (lambda policy: policy.name, policies.by_name)})
encode_event, decode_event = _codec.of(Event)
encode_config, decode_config = _codec.of(CoreConfig)
SCHEMA = _codec.schema
"""The fields of every type in a recording."""
_encode_action, _ = Codec(dict.fromkeys((RouterError, Refused), (_encode_error, _never_decoded))).of(Action)


def digest(actions: Sequence[Action]) -> str:
    """Return a digest of the actions, or an empty string if there are none."""
    if not actions:
        return ""
    text = _to_json([_encode_action(action) for action in actions])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def header(config: CoreConfig) -> str:
    """Return the first line."""
    content = {"format": FORMAT, "version": VERSION, "types": SCHEMA, "config": encode_config(config)}
    return json.dumps(content) + "\n"


def line(event: Event, now: float, actions: Sequence[Action]) -> str:
    """Return the line of one event."""
    text = _to_json((now, encode_event(event), digest(actions)))[:-1]
    return f'{text},"{zlib.crc32(text.encode()):08x}"]\n'


def footer(num_events: int) -> str:
    """Return the last line."""
    return json.dumps({"events": num_events}) + "\n"


class Recorder:
    """Records events on the event loop; a thread writes them while their actions are carried out.

    If the file cannot be written, or not as fast as events arrive, `failed` is called once, on the event
    loop, and nothing more is recorded. Raises `OSError` if the file cannot be opened.
    """

    def __init__(self, path: Path, config: CoreConfig, failed: Callable[[OSError], None]) -> None:
        self._fd = open_unblocked(path)
        self._writer = BackgroundWriter(self._fd, MAX_WAITING_BYTES, self._note_error)
        self._failed = failed
        self._error: OSError | None = None
        self._waiting: list[tuple[Event, float, Sequence[Action]]] = []
        self._texts = [header(config)]
        self._num_chars = 0
        self._num_events = 0
        self._closed = False
        self._written_at = 0.0

    def record(self, event: Event, now: float, actions: Sequence[Action]) -> None:
        """Record an event and the actions decided on it. Does nothing after `close`."""
        if self._closed:
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append((event, now, actions))

    def flush(self) -> None:
        """Write as many waiting events as one turn has time for; the next turns write the rest."""
        waiting, self._waiting = self._waiting, []
        if not waiting or self._closed:
            return
        num_lines = num_chars = 0
        for event, at, actions in waiting:
            text = line(event, at, actions)
            self._texts.append(text)
            num_lines += 1
            num_chars += len(text)
            if num_chars > CHARS_PER_TURN:
                break
        now = waiting[num_lines - 1][1]
        self._waiting = waiting[num_lines:]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._num_events += num_lines
        self._num_chars += num_chars
        if now - self._written_at > _WRITTEN_AFTER_S or self._num_chars > _BUFFER_CHARS:
            self._written_at = now
            self._hand_over()

    def close(self) -> None:
        """Write the last line, and wait for the file, but not forever."""
        while self._waiting and not self._closed:
            self.flush()
        self._texts.append(footer(self._num_events))
        self._hand_over()
        written = self._writer.close(_CLOSE_TIMEOUT_S)
        self._end_on(self._error or (None if written else _too_slow()))
        self._closed = True
        if written:  # else the thread still uses it
            os.close(self._fd)

    def _hand_over(self) -> None:
        self._end_on(self._error)
        if self._closed:
            return
        text, self._texts, self._num_chars = "".join(self._texts), [], 0
        if not self._writer.write(text):
            self._end_on(_too_slow())

    def _note_error(self, error: OSError) -> None:
        """Keep the first error. Runs on the writer's thread."""
        self._error = self._error or error

    def _end_on(self, error: OSError | None) -> None:
        if error is not None and not self._closed:
            self._closed = True
            self._failed(error)


def _too_slow() -> OSError:
    return OSError(errno.EAGAIN, "the file is not written as fast as events arrive")
