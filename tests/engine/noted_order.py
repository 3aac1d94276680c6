"""A device that notes its work: for each piece, which others are certainly over when it begins.

Tensors are on the CPU, where all is done at once, so nothing here ever comes out wrong. What a GPU could do
too early shows in what `Order` has noted.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import pytest
import torch
from torch import Tensor

from engine.core.report import Mark
from engine.execution import step_loop
from engine.kv import block_copies, swap_space
from kernels.copy_blocks import gather_blocks, scatter_blocks
from worker.handoff import tier_slots

STEPS = "steps"
"""The stream of the steps."""


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work on a device, and the blocks of the pool that it reads and writes."""

    what: str
    behind: frozenset[int]
    """The numbers of the pieces that are over when it begins."""
    reads: frozenset[int]
    writes: frozenset[int]

    def disturbs(self, other: Work) -> bool:
        """Return True if one of the two writes to what the other one reads or writes."""
        return bool(self.writes & (other.reads | other.writes) or other.writes & self.reads)


@dataclass(frozen=True, eq=False)
class NotedMark:
    """A mark on a stream, behind the pieces of work with these numbers."""

    order: Order
    behind: frozenset[int]

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.order.learn(self.behind)

    def elapsed_time(self, later: NotedMark, /) -> float:
        return 1.0


class Order:
    """The work of all streams, in the order in which it was put there.

    A stream begins each piece once the one before is over, and what it was told to wait for. So it does with
    what the thread that puts it there has waited for.
    """

    def __init__(self) -> None:
        self.work: list[Work] = []
        self._over: defaultdict[str, set[int]] = defaultdict(set)
        """The numbers of the pieces that are over when the next one of a stream begins."""
        self._lock = threading.Lock()
        self._thread = threading.local()

    def put(self, what: str, reads: Iterable[int] = (), writes: Iterable[int] = ()) -> int:
        """Put a piece of work on the thread's current stream; return its number."""
        over = self._over[getattr(self._thread, "stream", STEPS)]
        with self._lock:
            over |= self.known
            self.work.append(Work(what, frozenset(over), frozenset(reads), frozenset(writes)))
            over.add(len(self.work) - 1)
            return len(self.work) - 1

    def mark(self, stream: str) -> NotedMark:
        return NotedMark(self, frozenset(self._over[stream]))

    def wait(self, stream: str, mark: Mark) -> None:
        assert isinstance(mark, NotedMark)
        self._over[stream] |= mark.behind

    @property
    def known(self) -> frozenset[int]:
        """The pieces of work that the calling thread has waited for."""
        known: frozenset[int] = getattr(self._thread, "known", frozenset())
        return known

    def learn(self, numbers: frozenset[int]) -> None:
        """Note that the calling thread has waited for work, or for a thread that has."""
        self._thread.known = self.known | numbers

    def numbers(self, what: str) -> list[int]:
        """Return the numbers of all pieces that do this."""
        return [number for number, work in enumerate(self.work) if work.what == what]

    def is_behind(self, later: int, earlier: int) -> bool:
        """Return True if a piece of work certainly begins once another one is over."""
        return earlier in self.work[later].behind

    def races(self) -> list[str]:
        """Return the pairs of pieces that may run at once and disturb each other."""
        return [
            f"{number} {first.what}, {later} {second.what}"
            for (number, first), (later, second) in combinations(enumerate(self.work), 2)
            if number not in second.behind and first.disturbs(second)
        ]

    @contextlib.contextmanager
    def on(self, stream: str) -> Iterator[None]:
        """Let the stream be the calling thread's current one for the time of a `with` block."""
        before, self._thread.stream = getattr(self._thread, "stream", STEPS), stream
        yield
        self._thread.stream = before


def note_order(monkeypatch: pytest.MonkeyPatch) -> Order:
    """Note the copies of blocks and the marks of the step loop from now on."""
    order, names = Order(), iter(f"copies {number}" for number in range(100))

    class NotedStream:
        """Stands in for `CopyStream`."""

        def __init__(self, device: torch.device) -> None:
            self._name = next(names)

        @contextlib.contextmanager
        def behind(self, mark: Mark | None) -> Iterator[None]:
            if mark is not None:
                order.wait(self._name, mark)
            with order.on(self._name):
                yield

        def mark(self) -> Mark:
            return order.mark(self._name)

    runs = block_copies.runs

    def noted_gather(pool: Tensor, block_ids: Tensor, out: Tensor) -> None:
        order.put("gather", reads=block_ids.tolist())
        gather_blocks(pool, block_ids, out)

    def noted_scatter(source: Tensor, pool: Tensor, block_ids: Tensor) -> None:
        order.put("scatter", writes=block_ids.tolist())
        scatter_blocks(source, pool, block_ids)

    def noted_runs(slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        for run in runs(slots):
            order.put("bus")
            yield run

    monkeypatch.setattr(block_copies, "CopyStream", NotedStream)
    monkeypatch.setattr(block_copies, "gather_blocks", noted_gather)
    monkeypatch.setattr(block_copies, "scatter_blocks", noted_scatter)
    monkeypatch.setattr(block_copies, "runs", noted_runs)
    for marking in (tier_slots, swap_space, step_loop):
        monkeypatch.setattr(marking, "mark_steps", lambda _: order.mark(STEPS))
    for delaying in (tier_slots, swap_space):
        monkeypatch.setattr(delaying, "delay_steps", lambda _, mark: order.wait(STEPS, mark))
    return order
