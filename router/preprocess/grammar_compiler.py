"""Compile the grammars of output formats in a process of their own, within limits of time and memory.

A schema is a program from outside: whatever it makes the compiler do, the router and its tokenizers go on. A
process that exceeds a limit is ended, and the request that it compiled is refused.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import signal
from collections import OrderedDict
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

from output_text.refusal import GrammarRefused
from router.errors import Overloaded, Reason
from router.preprocess.model_facts import ModelFacts

if TYPE_CHECKING:
    from output_text.grammar import Grammars

LIMIT_S = 1.0
"""The most time of a processor that one format may take, here and then once on each worker."""
LIMIT_BYTES = 2 << 30
"""Most memory of the process, the tokenizer included."""
MAX_WAITING = 64
"""Requests that may wait for their grammars."""
MAX_KEPT = 256
"""Compiled formats that are kept: most callers send the same few schemas again and again."""

_grammars: Grammars | None = None


def _start(facts: ModelFacts) -> None:
    from output_text.grammar import Grammars  # noqa: PLC0415 -- the router itself does without llguidance

    global _grammars  # noqa: PLW0603 -- one per process, loaded before its first task
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    _grammars = Grammars(facts.tokenizer_file, facts.vocab_size, facts.eos_token_ids)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))


def _compile(kind: str, text: str) -> str:
    from output_text.grammar import grammar_of  # noqa: PLC0415 -- as above

    assert _grammars is not None, "the pool's initializer has run"
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)  # its signal ends the process
    try:
        grammar = grammar_of(kind, text)
        _grammars.compiled(grammar)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    return grammar


class GrammarCompiler:
    """The compiling process, which starts with the first format, and the formats compiled last."""

    def __init__(self, facts: ModelFacts) -> None:
        self._facts = facts
        self._pool: ProcessPoolExecutor | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def compile(self, kind: str, text: str) -> str:
        """Return the grammar of a format. Raises `GrammarRefused`, or `Overloaded` if too many wait."""
        kept = self._kept.get((kind, text))
        if kept is not None:
            self._kept.move_to_end((kind, text))
            return kept
        if self._waiting == MAX_WAITING:
            why = f"{MAX_WAITING} requests wait for the grammars of their output formats"
            raise Overloaded(Reason.ROUTER_BUSY, why, LIMIT_S, limit=MAX_WAITING)
        self._waiting += 1
        try:
            async with self._turn:
                grammar = await self._compile(kind, text)
        finally:
            self._waiting -= 1
        self._kept[kind, text] = grammar
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return grammar

    async def _compile(self, kind: str, text: str) -> str:
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")  # forking gRPC's threads is unsafe
            self._pool = ProcessPoolExecutor(1, spawn, _start, (self._facts,))
        try:
            return await asyncio.wrap_future(self._pool.submit(_compile, kind, text))
        except BrokenProcessPool:
            self.close()
            limits = f"{LIMIT_S:g} s of a processor and {LIMIT_BYTES >> 30} GiB"
            raise GrammarRefused(f"its grammar does not compile within {limits}") from None

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
