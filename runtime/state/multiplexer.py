"""One connection to Redis for the commands of many callers.

Commands that are ready in the same turn of the event loop are written together, and none waits for the
answers to earlier ones. Redis executes one after the other and answers in their order; an error is the answer
to one command and leaves the others alone.

A call that gets no answer fails as it would over a connection of its own:

- The connection is lost: calls without an answer are sent once more, in their order, over a new connection.
- No connection can be made: all calls that wait for it fail.
- Redis does not answer a call in time: that call fails, and the connection takes no more calls. Those that
  were sent over it keep their own time.
- Too many calls are under way: a call waits for its turn, and fails if that takes too long.

A standstill of the caller's own event loop is not held against Redis.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from runtime.state.standstill import Alarm

MAX_SENT = 256
"""The most calls of a connection that wait for answers: far fewer than Redis executes within `answer_s`."""


@dataclass(slots=True, eq=False)
class _Call:
    """A command, and its answer to come."""

    packed: bytes
    answer: asyncio.Future[Any]
    due_at: float
    """When it must have been sent, and then, when its answer must have come: on the event loop's clock."""
    is_repeated: bool = False

    def resolve(self, answer: Any) -> None:
        """Pass the answer on, unless the caller has given up."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Pass an error on, unless the caller has given up."""
        if not self.answer.done():
            self.answer.set_exception(error)


def pack(command: Sequence[str | int]) -> bytes:
    """Return a command in Redis's protocol, as redis-py's `pack_command` does in three times the time."""
    arguments = [part.encode() if isinstance(part, str) else b"%d" % part for part in command]
    parts = [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


class Multiplexer:
    """Sends commands over one connection, and over another one when that is lost.

    `make` returns a connection to be opened, without a timeout of its own. A call has `wait_s` until it must
    have been sent, and then `answer_s` for its answer. A connection must be open within `answer_s`, too.
    """

    def __init__(self, make: Callable[[], redis.asyncio.Connection], wait_s: float, answer_s: float) -> None:
        self._make = make
        self._wait_s = wait_s
        self._answer_s = answer_s
        self._line: _Line | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each connection: the current one, and those that no longer take calls."""

    def call(self, *command: str | int) -> asyncio.Future[Any]:
        """Send a command with the others of this turn of the event loop; return its answer to come.

        The answer may be a `RedisError` or an `OSError`.
        """
        loop = asyncio.get_running_loop()
        call = _Call(pack(command), loop.create_future(), loop.time() + self._wait_s)
        (self._line or self._open()).take(call)
        return call.answer

    async def close(self) -> None:
        """Close the connections. Calls under way fail."""
        while self._tasks:  # one that is just being lost may open another
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _open(self) -> _Line:
        self._line = line = _Line(self._make(), self._answer_s, self._leave)
        self._tasks.add(line.task)
        line.task.add_done_callback(self._tasks.discard)
        return line

    def _leave(self, line: _Line, calls: Iterable[_Call]) -> None:
        """Take in that a line takes no more calls, and that these are to be sent over another."""
        if self._line is line:
            self._line = None
        for call in calls:
            (self._line or self._open()).take(call)


class _Line:
    """One connection, with the calls that wait to be sent over it and those that wait for their answers.

    `leave` is called when the line takes no more calls, with those that another line is to send.
    """

    def __init__(
        self,
        connection: redis.asyncio.Connection,
        answer_s: float,
        leave: Callable[[_Line, Iterable[_Call]], None],
    ) -> None:
        self._connection = connection
        self._answer_s = answer_s
        self._leave = leave
        self._unsent: deque[_Call] = deque()
        self._sent: deque[_Call] = deque()
        self._can_send = asyncio.Event()
        self._can_send_since = 0.0
        self._alarm: Alarm | None = None
        """Goes off when the connection is not open in time, and then, when the next answer is late."""
        self._is_open = False
        self._is_retired = False
        self._failure: BaseException = RedisConnectionError("the connection was closed")
        """Raised to the calls that are left in the end."""
        self.task = asyncio.create_task(self._run(), name="redis line")
        self.task.add_done_callback(lambda _: self._end())  # it may be cancelled before it begins

    def take(self, call: _Call) -> None:
        """Send a call after the earlier ones."""
        self._unsent.append(call)
        self._wake()

    async def _run(self) -> None:
        """Connect, send and receive, until the connection is lost or this task is cancelled."""
        due_at = asyncio.get_running_loop().time() + self._answer_s
        self._alarm = Alarm(due_at, self._give_up, self._answer_s)
        try:
            await self._connection.connect()  # type: ignore[no-untyped-call]  # redis ships no annotation
            self._alarm.cancel()
            self._alarm = None
            self._is_open = True
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send())
                tasks.create_task(self._receive())
        except* (RedisError, OSError, MemoryError) as failures:
            self._failure = failures.exceptions[0]
            if self._is_open:
                self._repeat()
        finally:
            self._end()
            await self._connection.disconnect(nowait=True)

    def _give_up(self) -> None:
        """End a line whose connection is not open in time."""
        self._failure = RedisTimeoutError(f"no connection within {self._answer_s:g} s")
        self.task.cancel()

    def _wake(self) -> None:
        if not self._can_send.is_set():
            self._can_send.set()
            self._can_send_since = asyncio.get_running_loop().time()

    async def _send(self) -> None:
        """Write all calls that are ready, at each turn of the loop that has any."""
        loop = asyncio.get_running_loop()
        while True:
            await self._can_send.wait()
            self._can_send.clear()
            calls = self._next_calls(loop.time())
            if calls:
                if self._alarm is None:
                    self._set_alarm(calls[0].due_at)
                packed = b"".join([call.packed for call in calls])
                await self._connection.send_packed_command(packed, check_health=False)

    def _next_calls(self, now: float) -> list[_Call]:
        """Return the next calls, which count as sent from now on."""
        calls: list[_Call] = []
        while self._unsent and len(self._sent) + len(calls) < MAX_SENT:
            call = self._unsent.popleft()
            if call.due_at < self._can_send_since:  # `now` may be after a standstill
                call.fail(RedisConnectionError("too many calls are under way"))
            elif not call.answer.done():
                call.due_at = now + self._answer_s
                calls.append(call)
        self._sent += calls
        return calls

    async def _receive(self) -> None:
        """Give each call its answer: answers come in the order of the calls."""
        while True:
            try:
                answer = await self._connection.read_response(timeout=math.inf, disconnect_on_error=False)
            except ResponseError as error:
                self._sent.popleft().fail(error)
            else:
                self._sent.popleft().resolve(answer)
            if self._unsent:
                self._wake()

    def _set_alarm(self, due_at: float) -> None:
        self._alarm = Alarm(due_at, self._fail_late)

    def _fail_late(self) -> None:
        """Fail the calls whose answers are late, and retire the connection if there are any.

        So it is if their callers have given up: other calls wait behind them.
        """
        now = asyncio.get_running_loop().time()
        late = [call for call in self._sent if call.due_at <= now]
        for call in late:
            call.fail(RedisTimeoutError(f"no answer within {self._answer_s:g} s"))
        if late and not self._is_retired:
            unsent, self._unsent = self._unsent, deque()
            self._retire(unsent)
            # By then, all calls that were sent have their answers or are late.
            Alarm(now + self._answer_s, self.task.cancel)
        self._alarm = None
        if len(late) < len(self._sent):
            self._set_alarm(self._sent[len(late)].due_at)

    def _retire(self, calls: Iterable[_Call]) -> None:
        """Take no more calls, and leave these to another line."""
        self._is_retired = True
        self._leave(self, calls)

    def _repeat(self) -> None:
        """Let another line send what has no answer, unless it has been sent twice."""
        again = [call for call in self._sent if not call.is_repeated]
        self._sent = deque(call for call in self._sent if call.is_repeated)
        for call in again:
            call.is_repeated = True
        unsent, self._unsent = self._unsent, deque()
        self._retire([*again, *unsent])

    def _end(self) -> None:
        """Take no more calls, and fail those that are left."""
        if self._alarm is not None:
            self._alarm.cancel()
        left = [*self._sent, *self._unsent]
        self._sent.clear()
        self._unsent.clear()
        self._retire(())
        for call in left:
            call.fail(self._failure)
