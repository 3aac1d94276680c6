"""Run commands in a pseudo-terminal, and note when each piece of their output came."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

READ_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Piece:
    """Output of a program, `at_s` seconds after it was started."""

    at_s: float
    text: str


def run(command: str, columns: int, rows: int, cwd: Path, environment: Mapping[str, str]) -> list[Piece]:
    """Run a shell command in a terminal of this size, and show its output here too.

    Raise `subprocess.CalledProcessError` if it fails.
    """
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        argv = ["/bin/sh", "-c", command]
        env = {**environment, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
        with subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        ) as process:
            os.close(theirs)
            pieces = list(_read(ours))
    finally:
        os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return pieces


def _read(terminal: int) -> Iterator[Piece]:
    """Yield output until the last program has closed the terminal."""
    start_s, decoder = time.monotonic(), codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        try:
            data = os.read(terminal, READ_BYTES)
        except OSError:  # Linux says that nobody holds the other side any more
            return
        if not data:
            return
        text = decoder.decode(data)
        sys.stdout.write(text)
        sys.stdout.flush()
        yield Piece(time.monotonic() - start_s, text)


def typed(prompt: str, command: str, key_s: float) -> Sequence[Piece]:
    """Return what a prompt shows while somebody types a command, a key each `key_s` seconds."""
    pieces = [Piece(0.0, prompt)]
    pieces += [Piece(place * key_s, key) for place, key in enumerate(command, start=1)]
    return [*pieces, Piece((len(command) + 4) * key_s, "\r\n")]
