"""Tokenise in separate processes, because the tokenizer holds the interpreter lock while it works.

Chats are rendered there too: a template is a program that comes with the model, and may run long.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from chat_formats import ChatFormats
from output_text.detokenizer import PROMPT_TAIL
from output_text.output import OutputRules
from router.auth.limits import MAX_WAITING_BYTES
from router.errors import Overloaded, Reason, Unavailable
from router.preprocess import tokenizer_process
from router.preprocess.chat_encoder import EncodedPrompt
from router.preprocess.chat_template import ChatTemplate
from router.preprocess.conversation import Conversation
from router.preprocess.plain_text.in_content import InContent
from router.preprocess.tokenizer_line import Place, TokenizerLine
from scheduling.request import FinishReason, Matched, StopRules

CALL_BYTES = 1024
"""The cost of a call besides its text, in time and in memory, as bytes of text."""
BYTES_PER_TOKEN = 4
"""A rough average."""
NUM_SAMPLES = 32
"""The speed is the median over this many recent texts, so that one standstill does not count."""
RETRY_S = 0.5
"""The retry-after while the speed is unknown, and while a process is replaced."""

T = TypeVar("T")


class TokenizerPool:
    """A few tokenizer processes, and the texts that wait for them, which are bounded in bytes."""

    def __init__(
        self,
        tokenizer_file: Path,
        num_processes: int,
        template: ChatTemplate | None = None,
        formats: ChatFormats | None = None,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        special_tokens_in_content: InContent = InContent.TEXT,
    ) -> None:
        self._tokenizer_file = tokenizer_file
        self._num_processes = num_processes
        self._chats = template, formats or ChatFormats(), special_tokens_in_content
        self._max_waiting_bytes = max_waiting_bytes
        self._pool = self._new_pool()
        self._line = TokenizerLine()
        self._turns: dict[Place, asyncio.Future[None]] = {}
        self._running: dict[Place, float] = {}
        """The texts that processes work on, with the time when each began."""
        self._samples: deque[float] = deque(maxlen=NUM_SAMPLES)
        """Seconds per byte."""

    def _new_pool(self) -> ProcessPoolExecutor:
        # Forking a process that runs gRPC's threads is unsafe.
        return ProcessPoolExecutor(
            self._num_processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=tokenizer_process.start,
            initargs=(str(self._tokenizer_file), *self._chats),
        )

    async def warm_up(self) -> None:
        """Start every process; raises the error of an unusable tokenizer."""
        await asyncio.gather(
            *(self.encode("warm", add_special_tokens=False) for _ in range(self._num_processes))
        )
        # Starting a process says nothing about its speed.
        self._samples.clear()

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text. Raises `Overloaded` if too many bytes wait already."""
        return await self._run(len(text.encode()), tokenizer_process.encode, text, add_special_tokens)

    async def encode_chat(self, chat: Conversation, *, has_format: bool = False) -> EncodedPrompt:
        """Return an encoded chat, whose output may have a format.

        Raises `TemplateRefused` and `ChatRefused`, and errors of `encode`.
        """
        return await self._run(chat.num_bytes, tokenizer_process.encode_chat, chat, has_format)

    async def encode_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of each word as it is, and after a space. Raises errors of `encode`."""
        return await self._run(
            sum(2 * len(word.encode()) for word in words), tokenizer_process.encode_words, words
        )

    async def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids. Raises errors of `encode`."""
        return await self._run(
            BYTES_PER_TOKEN * len(token_ids), tokenizer_process.decode, token_ids, skip_special_tokens
        )

    async def token_bytes(self, token_ids: list[int]) -> list[bytes]:
        """Return the bytes of each token by itself. Raises errors of `encode`."""
        return await self._run(BYTES_PER_TOKEN * len(token_ids), tokenizer_process.token_bytes, token_ids)

    async def end_of(
        self, prompt_token_ids: Sequence[int], token_ids: list[int], stop: StopRules, rules: OutputRules
    ) -> tuple[FinishReason, Matched | None]:
        """Return whether these tokens end a choice, and what matched. Raises errors of `encode`."""
        tail = list(prompt_token_ids[-PROMPT_TAIL:])
        return await self._run(
            BYTES_PER_TOKEN * len(token_ids), tokenizer_process.end_of, tail, token_ids, stop, rules
        )

    def wait_s(self, num_bytes: int) -> float:
        """Return the seconds until the turn of a text that arrives now; 0 until the speed is known."""
        now = time.monotonic()
        rest_s = [max(0.0, self.own_s(place.size) - (now - at)) for place, at in self._running.items()]
        free_in_s = min(rest_s) if len(rest_s) >= self._num_processes else 0.0
        return free_in_s + self.own_s(self._line.before(num_bytes + CALL_BYTES)) / self._num_processes

    def own_s(self, num_bytes: int) -> float:
        """Return the seconds that one process takes for this many bytes; 0 until the speed is known."""
        return num_bytes * statistics.median(self._samples) if self._samples else 0.0

    async def _run(self, num_bytes: int, work: Callable[..., T], *arguments: object) -> T:
        place = self._join(num_bytes + CALL_BYTES)
        turn = self._turns[place] = asyncio.get_running_loop().create_future()
        try:
            self._start_next()
            await turn
        except asyncio.CancelledError:
            self._line.leave(place)
            if self._running.pop(place, None) is not None:
                self._start_next()
            raise
        finally:
            del self._turns[place]
        return await self._run_now(place, work, *arguments)

    def _join(self, size: int) -> Place:
        over = self._line.size + size - self._max_waiting_bytes
        if over > 0 and len(self._line):
            raise Overloaded(
                Reason.ROUTER_BUSY,
                f"{self._line.size} bytes of prompts wait for tokenisation, and {size} more exceed the limit "
                f"of {self._max_waiting_bytes}",
                max(RETRY_S, self.own_s(over) / self._num_processes),
                limit=self._max_waiting_bytes,
            )
        return self._line.join(size)

    def _start_next(self) -> None:
        while len(self._running) < self._num_processes:
            place = self._line.take()
            if place is None:
                return
            self._running[place] = time.monotonic()
            self._turns[place].set_result(None)

    async def _run_now(self, place: Place, work: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        pool, future = self._submit(work, *arguments)
        # If the caller leaves, its process works on: the turn ends with the work.
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(self._end_turn, place, done))
        try:
            return await asyncio.wrap_future(future)
        except BrokenProcessPool as error:
            self._replace(pool)
            raise Unavailable(Reason.TOKENIZER_LOST, "a tokenizer process died", RETRY_S) from error

    def _submit(self, work: Callable[..., T], *arguments: object) -> tuple[ProcessPoolExecutor, Future[T]]:
        try:
            return self._pool, self._pool.submit(work, *arguments)
        except BrokenProcessPool:
            self._replace(self._pool)  # it broke before this text arrived
            return self._pool, self._pool.submit(work, *arguments)

    def _end_turn(self, place: Place, done: Future[T]) -> None:
        """Free a process, and give it the next text."""
        taken_s = time.monotonic() - self._running[place]
        if not done.cancelled() and done.exception() is None:
            self._samples.append(taken_s / place.size)
        del self._running[place]
        self._start_next()

    def _replace(self, broken: ProcessPoolExecutor) -> None:
        """Replace a pool: a killed process breaks its whole pool."""
        if self._pool is broken:
            broken.shutdown(wait=False)
            self._pool = self._new_pool()

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)
