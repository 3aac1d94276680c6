"""The tokens that rows may draw next, by their grammars and their bad words.

Those that a grammar allows are found while the model computes the logits. Each token is a bit. A thread of
its own finds the bits of a step's rows, outside of Python's lock, and the device turns them into numbers to
add to the logits: 0 for a token that is allowed, minus infinity otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from engine.core.batch import Rows
from engine.device import upload
from model_output.grammar.grammar import Follower, MaskFinder

NUM_THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))
"""Threads that find the tokens of one batch."""
ROWS_AT_ONCE_ON_CPU = 8
"""Memory for more rows' numbers would come fresh from the system at each step, which costs more than they."""


class GrammarMasks:
    """Columns over the rows of a batch. Rows change only while nothing is being found."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.has_grammar = np.zeros(max_rows, dtype=np.bool_)
        self._followers: list[Follower | None] = [None] * max_rows
        self._allowed = np.zeros((max_rows, -(-vocab_size // 32)), dtype=np.int32)
        """Bit i of word w: whether a row may draw token 32 · w + i next."""
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        forbidden = torch.from_numpy(bits == 0).to(device)
        self._added = torch.zeros(256, 8, device=device).masked_fill_(forbidden, float("-inf"))
        """Numbers to add to the logits of 8 tokens, by the byte that has their bits."""
        self._finder: MaskFinder | None = None
        self._thread = ThreadPoolExecutor(1, "masks")
        self._finding: Future[None] | None = None

    def set(self, row: int, follower: Follower | None) -> None:
        """Describe a row that joins; without a grammar it may draw any token."""
        self.has_grammar[row] = follower is not None
        self._followers[row] = follower

    def move(self, source: int, target: int) -> None:
        """Overwrite the row that leaves with the last one."""
        self.has_grammar[target] = self.has_grammar[source]
        self._allowed[target] = self._allowed[source]
        self._followers[target] = self._followers[source]

    def spread(self, source: int, targets: range, token_ids: Sequence[int]) -> None:
        """Give each of `targets` the state of a row behind one more of `token_ids`, which it allows."""
        self.has_grammar[targets.start : targets.stop] = self.has_grammar[source]
        follower = self._followers[source]
        for row, token_id in zip(targets, token_ids, strict=True):
            follower = None if follower is None else follower.after(token_id)
            self._followers[row] = follower

    def follower(self, row: int) -> Follower:
        """Return the state of a row that has a grammar."""
        follower = self._followers[row]
        assert follower is not None
        return follower

    def begin(self, rows: Sequence[int]) -> None:
        """Begin to find the tokens that may follow in `rows`, which have grammars, as they are now."""
        assert self._finding is None
        if not rows:
            return
        if self._finder is None:
            self._finder = MaskFinder(NUM_THREADS)
        states, allowed = [(self.follower(row), row) for row in rows], self._allowed
        self._finding = self._thread.submit(
            self._finder.find, states, allowed.ctypes.data, allowed.strides[0], len(allowed)
        )

    def wait(self) -> None:
        """Return when nothing is being found."""
        finding, self._finding = self._finding, None
        if finding is not None:
            finding.result()

    def stuck(self, rows: Sequence[int]) -> dict[int, str]:
        """Return why no token may follow, for those of `rows` where this is so; none will be drawn there."""
        found = {}
        for row in rows:
            follower = self.follower(row)
            follower.check(has_allowed=bool(self._allowed[row].any()))
            if follower.error:
                self._allowed[row] = 0
                found[row] = follower.error
        return found

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """Forbid tokens in logits [rows, vocab]; stuck rows have no finite logit then."""
        places, allowed = np.flatnonzero(self.has_grammar[rows]), self._allowed[rows]
        numbers = self._added.to(logits.dtype)
        at_once = ROWS_AT_ONCE_ON_CPU if logits.device.type == "cpu" else max(1, len(places))
        for begin in range(0, len(places), at_once):
            some = places[begin : begin + at_once]
            bits = allowed[some].view(np.uint8).reshape(-1)
            added = numbers.index_select(0, upload(bits, logits.device).int())
            logits.index_add_(0, upload(some, logits.device), added.view(len(some), -1)[:, : logits.shape[1]])


class BadWords:
    """The bad words of a request that have more than one token; those of one token are banned everywhere."""

    __slots__ = ("_by_last",)

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self._by_last: dict[int, list[tuple[list[int], int]]] = {}
        """Maps the last token before a banned one to all tokens before the banned one, and the banned one."""
        for sequence in sequences:
            *before, banned = sequence
            if before:
                self._by_last.setdefault(before[-1], []).append((before, banned))

    def __bool__(self) -> bool:
        return bool(self._by_last)

    def banned_after(self, output: Sequence[int]) -> list[int]:
        """Return the tokens, ascending, that would complete a bad word behind this output."""
        ends = self._by_last.get(output[-1], ()) if output else ()
        found = {banned for before, banned in ends if list(output[-len(before) :]) == before}
        return sorted(found)
