"""Tokenises in processes of its own: the tokenizer holds the interpreter lock for as long as it works."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tokenizers import Tokenizer

from router.errors import Overloaded, Reason, Unavailable

BACKLOG_PER_PROCESS = 128
RETRY_S = 0.5

_tokenizer: Tokenizer | None = None


def _start(tokenizer_file: str) -> None:
    global _tokenizer  # noqa: PLW0603 -- one per pool process, loaded before its first task
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    _tokenizer = Tokenizer.from_file(tokenizer_file)


def _encode(text: str, add_special_tokens: bool) -> list[int]:
    assert _tokenizer is not None, "the pool's initializer has run"
    return list(_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)


def _decode(token_ids: list[int]) -> str:
    assert _tokenizer is not None, "the pool's initializer has run"
    return str(_tokenizer.decode(token_ids, skip_special_tokens=True))


class TokenizerPool:
    """A bounded queue before a few tokenizer processes."""

    def __init__(self, tokenizer_file: Path, num_processes: int) -> None:
        self._tokenizer_file = tokenizer_file
        self._num_processes = num_processes
        self._pool = self._new_pool()
        self._backlog = 0

    def _new_pool(self) -> ProcessPoolExecutor:
        # Forking a process that runs gRPC's threads is unsafe.
        return ProcessPoolExecutor(
            self._num_processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start,
            initargs=(str(self._tokenizer_file),),
        )

    async def warm_up(self) -> None:
        """Start every process; raises what makes the tokenizer unusable."""
        await asyncio.gather(
            *(self.encode("warm", add_special_tokens=False) for _ in range(self._num_processes))
        )

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text. `Overloaded` when too many texts wait already."""
        self._enter()
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, _encode, text, add_special_tokens)
        except BrokenProcessPool as error:
            raise self._replaced() from error
        finally:
            self._backlog -= 1

    async def decode(self, token_ids: list[int]) -> str:
        """The text of token ids, special ones left out."""
        self._enter()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, _decode, token_ids)
        except BrokenProcessPool as error:
            raise self._replaced() from error
        finally:
            self._backlog -= 1

    def _enter(self) -> None:
        limit = BACKLOG_PER_PROCESS * self._num_processes
        if self._backlog >= limit:
            raise Overloaded(
                Reason.ROUTER_BUSY, f"{limit} prompts wait for tokenisation", RETRY_S, limit=limit
            )
        self._backlog += 1

    def _replaced(self) -> Unavailable:
        """A killed process breaks its whole pool; the next call finds a new one."""
        self._pool.shutdown(wait=False)
        self._pool = self._new_pool()
        return Unavailable(Reason.TOKENIZER_LOST, "a tokenizer process died", RETRY_S)

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)
