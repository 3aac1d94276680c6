"""Arms, which take a load, and the records of their runs: shared by comparisons of running processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from baton import BatonError
from benchmarks.doors.observe import memory_and_cpu
from benchmarks.doors.plain import BadStream, Rejected

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Arm:
    """A running fleet: the processes between client and worker, and how a client asks it.

    `ask(prompt, num_tokens)` returns the seconds to the first token. It raises `Rejected` if the fleet does
    not take the request, and `BadStream`, `BatonError` or `OSError` if the stream is not whole.
    """

    name: str
    pids: Mapping[str, int]
    ask: Callable[[str, int], Awaitable[float]]

    def cpu_s(self) -> dict[str, float]:
        """Return the processor time that each process has used."""
        return {process: memory_and_cpu(pid)[1] for process, pid in self.pids.items()}


@dataclass(slots=True)
class Run:
    """The record of an arm under a load; times in ms as the clients saw them."""

    cpu_s: dict[str, float] = field(default_factory=dict)
    """Processor time by process."""
    memory_mb: float = 0.0
    """Memory of all processes, at the end."""
    wall_s: float = 0.0
    ttft_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    """The mean time between the tokens after the first of each request; empty if requests have one token."""
    rejected_after_ms: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def num_requests(self) -> int:
        return len(self.ttft_ms) + len(self.rejected_after_ms) + len(self.failed)


async def play(arm: Arm, prompts: Sequence[str], num_tokens: int, due_s: Sequence[float]) -> Run:
    """Send each prompt at its time, whatever happened to those before; return when all have ended."""
    run, before, start_s = Run(), arm.cpu_s(), time.perf_counter()

    async def one(prompt: str, at_s: float) -> None:
        await asyncio.sleep(max(0.0, start_s + at_s - time.perf_counter()))
        request_s = time.perf_counter()
        try:
            ttft_ms = 1000 * await arm.ask(prompt, num_tokens)
        except Rejected:
            run.rejected_after_ms.append(1000 * (time.perf_counter() - request_s))
        except (BadStream, BatonError, OSError) as error:
            run.failed.append(f"{type(error).__name__}: {error}")
        else:
            run.ttft_ms.append(ttft_ms)
            if num_tokens > 1:
                took_ms = 1000 * (time.perf_counter() - request_s)
                run.tpot_ms.append((took_ms - ttft_ms) / (num_tokens - 1))

    await asyncio.gather(*map(one, prompts, due_s))
    run.wall_s = time.perf_counter() - start_s
    run.cpu_s = {process: used_s - before[process] for process, used_s in arm.cpu_s().items()}
    run.memory_mb = sum(memory_and_cpu(pid)[0] for pid in arm.pids.values()) / 1e6
    return run


def by_turns(arms: Sequence[T], turn: int) -> list[T]:
    """Return the arms in an order that changes with the turn, so that none always comes first."""
    first = turn % len(arms)
    return [*arms[first:], *arms[:first]]
