"""A process that computes for this one: what takes long there, or ends the process, does no harm here.

Calls go over a pair of sockets which the event loop reads and writes itself. An executor of the standard
library passes each call through three threads, and each of them waits for the interpreter lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import struct
import threading
import traceback
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SIZE, _LARGE_SIZE = struct.Struct("!i"), struct.Struct("!Q")
"""The heads of a message of `multiprocessing.connection`; a -1 in the short one announces the long one."""

MOST_READ = 1 << 18
"""Bytes read at once."""
MOST_TOLD = 8000
"""Characters of a traceback that come with an error, of its end."""


class HelperLost(Exception):
    """The process has ended before it answered."""


class Helper:
    """One process, which begins with `start(*arguments)` and then runs one call after the other."""

    def __init__(self, start: Callable[..., object], *arguments: object) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._socket = socket.socket(fileno=os.dup(ours.fileno()))
        self._socket.setblocking(False)
        ours.close()
        # Forking a process that runs gRPC's threads is unsafe.
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=_serve, args=(theirs, start, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._awaited: deque[asyncio.Future[Any]] = deque()
        """The answers to come, in the order of the calls."""
        self._unsent, self._received = bytearray(), bytearray()
        self._is_over = False
        """Whether the sockets told that the process has ended."""

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None, "it was started"
        return self._process.pid

    @property
    def is_lost(self) -> bool:
        """Whether the process has ended."""
        return self._is_over or not self._process.is_alive()

    def submit(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> asyncio.Future[T]:
        """Have the process run a function of a module; return its result to come.

        Whoever cancels the future forgets the result: the process works on. The future gets the errors of the
        function, or `HelperLost`.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        if self._is_over:
            answer.set_exception(HelperLost())
            return answer
        call = ForkingPickler.dumps((work, arguments, named))
        packed = b"".join((_SIZE.pack(len(call)), call))
        loop.add_reader(self._socket, self._read)
        # An answer without its call, or half a call, would give callers the answers of others.
        self._awaited.append(answer)
        try:
            self._unsent += packed
        except MemoryError:
            self._awaited.pop()
            if not self._awaited:
                loop.remove_reader(self._socket)
            raise
        self._write()
        return answer

    def close(self, *, wait: bool = False) -> None:
        """End the process, whatever it does. Calls under way get `HelperLost`."""
        self._process.kill()
        self._lose()
        self._socket.close()
        if wait:
            self._process.join()

    def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lose()
            return
        del self._unsent[:sent]
        if self._unsent:
            loop.add_writer(self._socket, self._write)
        else:
            loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            data = self._socket.recv(MOST_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        received = self._received
        try:
            received += data
        except MemoryError:  # what follows would be read as something else
            self._process.kill()
            self._lose()
            return
        while (found := _first_message(received)) is not None:
            begin, end = found
            try:
                succeeded, result = ForkingPickler.loads(bytes(received[begin:end]))
            except Exception as error:  # noqa: BLE001 -- whatever it is, the caller must not wait for ever
                succeeded, result = False, error
            del received[:end]
            self._answer(succeeded=succeeded, result=result)

    def _answer(self, *, succeeded: bool, result: Any) -> None:
        answer = self._awaited.popleft()
        if not self._awaited:
            asyncio.get_running_loop().remove_reader(self._socket)
        if answer.done() or answer.get_loop().is_closed():
            return  # its caller has left
        if succeeded:
            answer.set_result(result)
        else:
            answer.set_exception(result)

    def _lose(self) -> None:
        """Fail the calls under way, unless their event loop has ended before."""
        self._is_over = True
        if self._awaited and not self._awaited[0].get_loop().is_closed():
            loop = self._awaited[0].get_loop()
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
            for answer in self._awaited:
                if not answer.done():
                    answer.set_exception(HelperLost())
        self._awaited.clear()


def _first_message(received: bytearray) -> tuple[int, int] | None:
    """Return where the first message begins and ends; None until it is whole."""
    if len(received) < _SIZE.size:
        return None
    begin, (size,) = _SIZE.size, _SIZE.unpack_from(received)
    if size == -1:
        if len(received) < _SIZE.size + _LARGE_SIZE.size:
            return None
        begin, (size,) = _SIZE.size + _LARGE_SIZE.size, _LARGE_SIZE.unpack_from(received, _SIZE.size)
    return (begin, begin + size) if len(received) >= begin + size else None


def _serve(calls: Connection, start: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """Run calls until the process that asks for them has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    start(*arguments)
    while True:
        try:
            work, given, named = calls.recv()
        except (EOFError, OSError):
            return
        try:
            answer = True, work(*given, **named)
        except Exception as error:  # noqa: BLE001 -- the caller gets it, whatever it is
            error.__notes__ = ["".join(traceback.format_exception(error))[-MOST_TOLD:]]
            answer = False, error
        with contextlib.suppress(OSError):  # the next call finds that nobody asks any more
            calls.send(answer)


def _end_with_parent() -> None:
    """End this process when the one that spawned it has ended, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "called in a spawned process"
    parent.join()
    os._exit(0)
