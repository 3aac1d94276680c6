"""Compile the grammars of output formats in a process of their own, within limits of time and memory.

A schema is a program from outside: whatever it makes the compiler do, the router and its tokenizers go on. A
process that exceeds a limit is ended. It may also have been killed from outside, so its format is compiled
once more in a new process before the request is refused. Tenants take turns, and none gets what is kept of
another: the time of an answer must not say which formats others use.
"""

from __future__ import annotations

import asyncio
import resource
import signal
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from model_output.grammar.kept import Kept
from model_output.grammar.refusal import GrammarRefused
from router.errors import Overloaded, Reason
from router.intake.helpers.helper import Helper, HelperLost
from router.intake.model_facts import ModelFacts

if TYPE_CHECKING:
    from model_output.grammar.grammar import Grammars

LIMIT_S = 1.0
"""The most time of a processor that one format may take, here and then once on each worker."""
LIMIT_BYTES = 2 << 30
"""Most memory of the process, the tokenizer included."""
MAX_WAITING = 64
"""Requests that may wait for their grammars; tenants that wait share it."""
MAX_KEPT_CHARACTERS = 16 << 20
"""Characters of the formats whose results are kept: most callers send the same few formats."""

_grammars: Grammars | None = None


def _start(facts: ModelFacts) -> None:
    from model_output.grammar.grammar import Grammars  # noqa: PLC0415 -- the router itself does without llguidance

    global _grammars  # noqa: PLW0603 -- one per process, loaded before its first task
    _grammars = Grammars(facts.tokenizer_file, facts.vocab_size, facts.eos_token_ids)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))


def _compile(tenant: str, kind: str, text: str, around: str) -> str:
    from model_output.grammar.grammar import grammar_for, grammar_of  # noqa: PLC0415 -- as above

    assert _grammars is not None, "the pool's initializer has run"
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)  # its signal ends the process
    try:
        grammar = grammar_of(kind, text)
        _grammars.check(grammar)
        if around:  # behind it, a format that describes no text would show only there
            grammar = grammar_of(kind, text, around)
            _grammars.check(grammar)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    return grammar_for(tenant, grammar)


class GrammarCompiler:
    """The compiling process, which starts with the first format, and what became of the last formats."""

    def __init__(self, facts: ModelFacts) -> None:
        self._facts = facts
        self._helper: Helper | None = None
        self._work: asyncio.Task[str | GrammarRefused] | None = None
        """The last work of the process, which goes on when its caller leaves."""
        self._turns = FairTurns(MAX_WAITING)
        self._kept = Kept[tuple[str, str, str, str], str | GrammarRefused](MAX_KEPT_CHARACTERS)

    async def compile(self, tenant: str, kind: str, text: str, around: str = "") -> str:
        """Return the grammar of a tenant's format; `around` as for `grammar_of`.

        Raises `GrammarRefused`, or `Overloaded` if too many wait.
        """
        asked = (tenant, kind, text, around)
        found = self._kept.get(asked)
        if found is None:
            if self._turns.is_full(tenant):
                why = f"too many requests of tenant {tenant!r} wait for the grammars of their output formats"
                raise Overloaded(Reason.ROUTER_BUSY, why, LIMIT_S, limit=MAX_WAITING)
            async with self._turns.turn(tenant):
                if (
                    self._work is not None
                ):  # of a caller that has left: one format at a time is in the process
                    await asyncio.wait([self._work])
                found = self._kept.get(asked)
                if found is None:
                    self._work = asyncio.create_task(self._compile(*asked))
                    found = await asyncio.shield(self._work)
        if isinstance(found, GrammarRefused):
            raise GrammarRefused(str(found))
        return found

    async def _compile(self, *asked: str) -> str | GrammarRefused:
        found = await self._tried(*asked) or await self._tried(*asked)
        if found is None:
            limits = f"{LIMIT_S:g} s of a processor and {LIMIT_BYTES >> 30} GiB"
            found = GrammarRefused(f"its grammar does not compile within {limits}")
        tenant, kind, text, around = asked
        self._kept.put((tenant, kind, text, around), found, len(text) + len(around) + len(str(found)))
        return found

    async def _tried(self, *asked: str) -> str | GrammarRefused | None:
        """Return the grammar, or why there is none, or None if the process has ended."""
        if self._helper is None:
            self._helper = Helper(_start, self._facts)
        try:
            return await self._helper.submit(_compile, *asked)
        except GrammarRefused as refused:
            return GrammarRefused(str(refused))  # without its traceback, which would be kept as well
        except HelperLost:
            self._end_process()
            return None

    def close(self) -> None:
        """End the process."""
        if self._work is not None:
            self._work.cancel()
        self._end_process()

    def _end_process(self) -> None:
        if self._helper is not None:
            self._helper.close()
            self._helper = None


class FairTurns:
    """A lock that waiting tenants get in turns, each its waiters in the order in which they came.

    A tenant that asks for much waits for itself, and others for one turn of it.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._holder: str | None = None
        """The tenant that has the turn."""
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By tenant; the first tenant is next."""

    def is_full(self, tenant: str) -> bool:
        """Return True if the tenant has as many waiters as its share of all that may wait."""
        own = len(self._waiting.get(tenant, ()))
        num_tenants = len(self._waiting.keys() | {tenant})
        return own >= max(1, self._max_waiting // num_tenants)

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it."""
        await self._take(tenant)
        try:
            yield
        finally:
            self._give()

    async def _take(self, tenant: str) -> None:
        if self._holder is None:
            self._holder = tenant
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(tenant, turn)
            else:  # given in the same moment
                self._give()
            raise

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(tenant, deque())
        if turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[tenant]

    def _give(self) -> None:
        """Give the turn to the next waiter, past those that were cancelled and have not left yet."""
        if self._holder is not None and self._holder in self._waiting:
            self._waiting.move_to_end(self._holder)
        self._holder = None
        while self._waiting and self._holder is None:
            tenant, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if not turns:
                del self._waiting[tenant]
            if not turn.done():
                turn.set_result(None)
                self._holder = tenant
