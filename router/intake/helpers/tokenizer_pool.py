"""Tokenise in separate processes, because the tokenizer holds the interpreter lock while it works.

Chats are rendered there too: a template is a program that comes with the model, and may run long.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from model_output.formats import ChatFormats
from model_output.text.detokenizer import PROMPT_TAIL
from model_output.text.model_files import FileUnusable
from model_output.text.output import Beginning, OutputRules
from router.errors import Overloaded, Reason, Unavailable
from router.intake.helpers import tokenizer_process
from router.intake.helpers.chat_template import LIMIT_S, ChatTemplate, TemplateRefused
from router.intake.helpers.helper import Helper, HelperLost
from router.intake.helpers.tokenizer_line import Place, TokenizerLine
from router.intake.helpers.tokenizer_process import EncodedPrompt
from router.limits import MAX_WAITING_BYTES
from router.request import Conversation, InContent
from scheduling.request import StopRules

CALL_BYTES = 1024
"""The cost of a call besides its text, in time and in memory, as bytes of text."""
BYTES_PER_TOKEN = 4
"""A rough average."""
NUM_SAMPLES = 32
"""The speed is the median over this many recent texts, so that one standstill does not count."""
HUNG_S = 30.0
HUNG_TIMES = 4
"""A text hangs that takes longer than this, and so many times what its size lets expect."""
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
        self._slots = [self._new_helper() for _ in range(num_processes)]
        """One process each: one that ends takes only the text that it had."""
        self._starting: set[int] = set()
        """Slots whose process was replaced, and has not begun yet."""
        self._slot_of: dict[Place, int] = {}
        """The slot that works on each text."""
        self._closed = False
        self._line = TokenizerLine()
        self._turns: dict[Place, asyncio.Future[None]] = {}
        self._running: dict[Place, float] = {}
        """The texts that processes work on, with the time when each began."""
        self._samples: deque[float] = deque(maxlen=NUM_SAMPLES)
        """Seconds per byte."""
        self.longest_token: int | None = None
        """The most bytes of text that one token stands for; None if that is not known."""

    def _new_helper(self) -> Helper:
        return Helper(tokenizer_process.start, str(self._tokenizer_file), *self._chats)

    async def warm_up(self) -> None:
        """Start every process. Raises `FileUnusable` for a tokenizer or template of no use."""
        try:
            await asyncio.gather(
                *(self.encode("warm", add_special_tokens=False) for _ in range(self._num_processes))
            )
        except Unavailable as error:
            found = "has a tokenizer or a chat template whose process ends as it starts"
            accepted = f"templates that compile within {LIMIT_S:g} s of a processor"
            raise FileUnusable(self._tokenizer_file.parent, found, accepted) from error
        self.longest_token = await self._run("", 0, tokenizer_process.longest_token)
        # Starting a process says nothing about its speed.
        self._samples.clear()

    async def encode(self, text: str, *, add_special_tokens: bool, tenant: str = "") -> list[int]:
        """Return the token ids of a text. Raises `Overloaded` if too many bytes wait already."""
        return await self._run(tenant, len(text.encode()), tokenizer_process.encode, text, add_special_tokens)

    async def encode_chat(
        self, chat: Conversation, *, has_format: bool = False, most_bytes: int | None = None, tenant: str = ""
    ) -> EncodedPrompt:
        """Return an encoded chat, whose output may have a format.

        Raises errors of `ChatEncoder.encode`, and of `encode`.
        """
        call = tenant, chat.num_bytes, tokenizer_process.encode_chat, chat, has_format, most_bytes, tenant
        try:
            return await self._attempt(*call)
        except HelperLost:
            # The process may have been killed from outside. If the next one ends too, it is the chat.
            try:
                return await self._attempt(*call)
            except HelperLost:
                why = f"it takes more than {2 * LIMIT_S:g} s of a processor, without a pause"
                raise TemplateRefused(why) from None

    async def encode_words(self, words: Sequence[str], *, tenant: str = "") -> tuple[tuple[int, ...], ...]:
        """Return the token ids of each word as it is, and after a space. Raises errors of `encode`."""
        return await self._run(
            tenant, sum(2 * len(word.encode()) for word in words), tokenizer_process.encode_words, words
        )

    async def decode(
        self, token_ids: list[int], *, skip_special_tokens: bool = True, tenant: str = ""
    ) -> str:
        """Return the text of token ids. Raises errors of `encode`."""
        num_bytes = BYTES_PER_TOKEN * len(token_ids)
        return await self._run(tenant, num_bytes, tokenizer_process.decode, token_ids, skip_special_tokens)

    async def token_bytes(self, token_ids: list[int], *, tenant: str = "") -> list[bytes]:
        """Return the bytes of each token by itself. Raises errors of `encode`."""
        num_bytes = BYTES_PER_TOKEN * len(token_ids)
        return await self._run(tenant, num_bytes, tokenizer_process.token_bytes, token_ids)

    async def beginning_of(
        self,
        prompt_token_ids: Sequence[int],
        token_ids: list[int],
        stop: StopRules,
        rules: OutputRules,
        *,
        tenant: str = "",
    ) -> Beginning:
        """Return the text of an output's first tokens, and whether they end it. Raises errors of `encode`."""
        tail = list(prompt_token_ids[-PROMPT_TAIL:])
        num_bytes = BYTES_PER_TOKEN * len(token_ids)
        call = tokenizer_process.beginning_of
        return await self._run(tenant, num_bytes, call, tail, token_ids, stop, rules)

    def wait_s(self, num_bytes: int, tenant: str = "") -> float:
        """Return the seconds until the turn of a text that arrives now; 0 until the speed is known."""
        now = time.monotonic()
        rest_s = [max(0.0, self.own_s(place.size) - (now - at)) for place, at in self._running.items()]
        free_in_s = min(rest_s) if len(rest_s) >= self._num_processes else 0.0
        return free_in_s + self.own_s(self._line.before(tenant, num_bytes + CALL_BYTES)) / self._num_processes

    def own_s(self, num_bytes: int) -> float:
        """Return the seconds that one process takes for this many bytes; 0 until the speed is known."""
        return num_bytes * statistics.median(self._samples) if self._samples else 0.0

    async def _run(self, tenant: str, num_bytes: int, work: Callable[..., T], *arguments: object) -> T:
        try:
            return await self._attempt(tenant, num_bytes, work, *arguments)
        except HelperLost:
            raise _process_died() from None

    async def _attempt(self, tenant: str, num_bytes: int, work: Callable[..., T], *arguments: object) -> T:
        """Have a process work. Raises `HelperLost` if that ends meanwhile, and errors of `encode`."""
        place = self._join(tenant, num_bytes + CALL_BYTES)
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

    def _join(self, tenant: str, size: int) -> Place:
        """Take a place in the line. Where that is full, a tenant may still fill its part of it."""
        line = self._line
        own = line.size_of(tenant)
        own_part = self._max_waiting_bytes // (line.num_tenants + (own == 0))
        over = min(line.size + size - self._max_waiting_bytes, own + size - own_part)
        if over > 0 and len(line):
            raise Overloaded(
                Reason.ROUTER_BUSY,
                f"{line.size} bytes of prompts wait for tokenisation, and {size} more exceed the limit "
                f"of {self._max_waiting_bytes}",
                max(RETRY_S, self.own_s(over) / self._num_processes),
                limit=self._max_waiting_bytes,
            )
        return line.join(tenant, size)

    def _start_next(self) -> None:
        while len(self._running) < self._num_processes:
            place = self._line.take()
            if place is None:
                return
            self._running[place] = time.monotonic()
            turn = self._turns[place]
            if not turn.done():  # cancelled in this turn of the loop, it gives its place back
                turn.set_result(None)

    async def _run_now(self, place: Place, work: Callable[..., T], *arguments: object) -> T:
        free = set(range(self._num_processes)).difference(self._slot_of.values())
        slot = self._slot_of[place] = min(free, key=lambda slot: (self._slots[slot].is_lost, slot))
        try:
            helper = self._living(slot)
            answer = helper.submit(work, *arguments)
        except BaseException:
            self._free(place)
            raise
        answer.add_done_callback(lambda done: self._end_turn(place, done))
        try:
            # If the caller leaves, its process works on: the turn ends with the work.
            return await asyncio.shield(answer)
        except HelperLost:
            if slot in self._starting:
                raise _process_died() from None
            self._replace(slot, helper)
            raise

    def _living(self, slot: int) -> Helper:
        """Return the process of a slot, a new one if that ended before. Raises `Unavailable`."""
        if self._slots[slot].is_lost and slot not in self._starting:  # otherwise that is being tried
            self._replace(slot, self._slots[slot])
        if self._slots[slot].is_lost:
            raise _process_died()
        return self._slots[slot]

    def _end_turn(self, place: Place, done: asyncio.Future[T]) -> None:
        """Free a process, and give it the next text."""
        taken_s = time.monotonic() - self._running[place]
        if not done.cancelled() and done.exception() is None:
            self._samples.append(taken_s / place.size)
        self._free(place)

    def _free(self, place: Place) -> None:
        del self._running[place]
        del self._slot_of[place]
        self._start_next()

    def _replace(self, slot: int, lost: Helper) -> None:
        """Start another process in place of one that has ended."""
        if self._slots[slot] is not lost or self._closed:
            return
        lost.close()
        self._starting.add(slot)
        try:
            helper = self._new_helper()
        except Exception:  # noqa: BLE001 -- the slot would have no process for ever
            # Most often this process is short of descriptors or memory.
            structlog.get_logger().warning("tokenizer_not_started", slot=slot, exc_info=True)
            asyncio.get_running_loop().call_later(RETRY_S, self._replace, slot, lost)
            return
        self._slots[slot] = helper
        try:
            ready = helper.submit(tokenizer_process.ready)
        except MemoryError:
            asyncio.get_running_loop().call_later(RETRY_S, self._replace, slot, helper)
            return
        ready.add_done_callback(lambda done: self._on_start(slot, helper, done))

    def _on_start(self, slot: int, helper: Helper, done: asyncio.Future[None]) -> None:
        if done.exception() is None:
            if self._slots[slot] is helper:
                self._starting.discard(slot)
        elif self._slots[slot] is helper and not self._closed:
            asyncio.get_running_loop().call_later(RETRY_S, self._replace, slot, helper)

    @property
    def works(self) -> bool:
        """Whether a process could take a text now, or soon: it has begun, and its text does not hang."""
        now = time.monotonic()
        hung = {
            slot
            for place, slot in self._slot_of.items()
            if now - self._running[place] > HUNG_S + HUNG_TIMES * self.own_s(place.size)
        }
        return len(self._starting | hung) < self._num_processes

    def close(self) -> None:
        """End the processes."""
        self._closed = True
        for helper in self._slots:
            helper.close(wait=True)


def _process_died() -> Unavailable:
    return Unavailable(Reason.TOKENIZER_LOST, "a tokenizer process died", RETRY_S)
