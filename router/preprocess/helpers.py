"""Processes that compute for the router: how it calls one, and how they end with it.

A process pool of Python's own needs two threads of the router for each call, which take the interpreter from
its event loop several times. Here the event loop writes a call to a socket and reads the answer. What is
pickled is seen by the router and its own processes only.

The process imports this module, so it does without asyncio.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import traceback
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

READ_BYTES = 1 << 18
HEADER_BYTES = 8
"""A message is its length, and then what is pickled."""


class HelperDied(Exception):
    """The process has ended before its answer."""


class Helper:
    """A process that makes one call at a time. It starts as soon as it is made.

    `start(*arguments)` runs first in the process. Its functions are those of modules, as for any pickling. A
    call is made from an event loop; the next one may be made from another.
    """

    def __init__(self, start: Callable[..., None], *arguments: object) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            spawn = multiprocessing.get_context("spawn")  # forking gRPC's threads is unsafe
            self._process = spawn.Process(target=_serve, args=(theirs, start, arguments), daemon=True)
            self._process.start()
        self._answer: asyncio.Future[Any] | None = None
        """The answer to come, whose event loop reads it."""
        self._unsent = memoryview(b"")
        self._received = bytearray()
        self._is_closed = False

    @property
    def process_id(self) -> int | None:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it takes calls. One that has ended by itself is to be closed."""
        return not self._is_closed and self._process.is_alive()

    def call(
        self, loop: asyncio.AbstractEventLoop, work: Callable[..., Any], *arguments: object
    ) -> asyncio.Future[Any]:
        """Return the result of `work(*arguments)` to come, or the error that it raises, or `HelperDied`.

        The process goes on with the work if the future is cancelled.
        """
        assert self._answer is None, "one call at a time"
        self._answer = answer = loop.create_future()
        loop.add_reader(self._socket, self._read)
        self._unsent = memoryview(_packed((work, arguments)))
        self._write()
        return answer

    def close(self) -> None:
        """End the process; a call under way fails."""
        if self._is_closed:
            return
        self._is_closed = True
        self._resolve(None, HelperDied())
        self._socket.close()
        self._process.kill()
        self._process.join()

    def _write(self) -> None:
        """Write as much as the socket takes: a process that stands still does not hold up the event loop."""
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        assert self._answer is not None, "what is unsent is of a call"
        loop = self._answer.get_loop()
        if self._unsent:
            loop.add_writer(self._socket, self._write)
        else:
            loop.remove_writer(self._socket)

    def _read(self) -> None:
        received = b""
        try:
            received = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            pass  # as after the last byte
        if not received:
            self.close()
            return
        self._received += received
        end = HEADER_BYTES + int.from_bytes(self._received[:HEADER_BYTES], "big")
        if len(self._received) == end:
            result, error = ForkingPickler.loads(memoryview(self._received)[HEADER_BYTES:])
            self._received = bytearray()
            self._resolve(result, error)

    def _resolve(self, result: Any, error: Exception | None) -> None:
        answer, self._answer = self._answer, None
        if answer is None or answer.get_loop().is_closed():
            return
        answer.get_loop().remove_reader(self._socket)
        answer.get_loop().remove_writer(self._socket)
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)


def end_with_parent() -> None:
    """End this process when the one that spawned it has ended, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "called in a spawned process"

    def wait() -> None:
        parent.join()
        os._exit(0)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def _serve(connection: socket.socket, start: Callable[..., None], arguments: tuple[object, ...]) -> None:
    """Make calls until the router closes the connection."""
    start(*arguments)
    with connection, connection.makefile("rwb") as stream:
        while header := stream.read(HEADER_BYTES):
            work, arguments = ForkingPickler.loads(stream.read(int.from_bytes(header, "big")))
            stream.write(_packed(_outcome(work, arguments)))
            stream.flush()


def _outcome(work: Callable[..., Any], arguments: tuple[object, ...]) -> tuple[Any, Exception | None]:
    """Return the result of a call and None, or None and its error."""
    try:
        return work(*arguments), None
    except Exception as error:  # noqa: BLE001 -- the caller gets it
        error.add_note(traceback.format_exc())
        return None, error


def _packed(message: object) -> bytes:
    pickled = bytes(ForkingPickler.dumps(message))
    return len(pickled).to_bytes(HEADER_BYTES, "big") + pickled
