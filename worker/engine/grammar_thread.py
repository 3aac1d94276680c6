"""Compiles grammars in a thread of its own: steps go on, and sequences join them when theirs is ready."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from engine.core.commands import Command, Decode, GrammarReady, Prefill, Receive
from model_output.grammar.grammar import Grammars
from model_output.grammar.refusal import GrammarRefused

log = structlog.get_logger()


class GrammarThread:
    """Stands before the engine: passes each command on to `submit`, and behind it the grammar it asks for.

    Routers compile a grammar first, within limits of time and memory, and pass on none that exceeds them.
    """

    def __init__(self, grammars: Grammars, submit: Callable[[Command], None]) -> None:
        self._grammars = grammars
        self._submit = submit
        self._thread = ThreadPoolExecutor(1, "grammars")

    def submit(self, command: Command) -> None:
        self._submit(command)
        if isinstance(command, Prefill | Decode | Receive) and command.spec.sampling.grammar:
            self._thread.submit(self._prepare, command.spec.handle, command.spec.sampling.grammar)

    def stop(self) -> None:
        """Compile nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, handle: int, grammar: str) -> None:
        try:
            ready = GrammarReady(handle, self._grammars.compiled(grammar))
        except GrammarRefused as refused:
            ready = GrammarReady(handle, None, str(refused))
        except Exception as error:
            log.exception("grammar_compiler_failed", handle=handle)
            ready = GrammarReady(handle, None, f"the compiler failed with {type(error).__name__}")
        self._submit(ready)
