"""Clients in their own processes, which send open loop and resume with another router when theirs dies."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import multiprocessing
import random
import resource
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import uvloop

from baton import AsyncClient, BatonError, Sampling, Slo, SloClass, Stop, Timeout
from sim.workloads.shapes import DEFAULT_CAPS, WORKLOADS, arrivals, prompt_ids

CLASSES = (SloClass.INTERACTIVE, SloClass.STANDARD, SloClass.BATCH)
VOCAB_SIZE = 2048


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of one process; `scale` multiplies the lengths of the workload."""

    workload: str
    rate: float
    seconds: float
    scale: float
    seed: int


@dataclass(slots=True)
class Outcome:
    """The results of the clients of one process. Times in milliseconds."""

    sent: int = 0
    finished: int = 0
    resumed: int = 0
    wrong_length: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """How often each error came. A plain dict, because `asdict` would count the pairs of a Counter anew."""
    ttft_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    late_ms: list[float] = field(default_factory=list)
    """How late each request was sent: an overloaded generator offers less than it claims."""
    cpu_s: float = 0.0

    def count(self, error: str) -> None:
        self.errors[error] = self.errors.get(error, 0) + 1


@dataclass(frozen=True, slots=True)
class Errand:
    """A request and its sending time, in seconds from the start."""

    due_s: float
    prompt: list[int]
    output_tokens: int
    slo: Slo


async def send(loads: Sequence[Load], addresses: Sequence[str], begin_at: float) -> list[Outcome]:
    """Send each load from its own process, from `begin_at` of the host's clock on."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(len(loads), mp_context=multiprocessing.get_context("spawn")) as pool:
        sending = [loop.run_in_executor(pool, _client_process, load, addresses, begin_at) for load in loads]
        return await asyncio.gather(*sending)


def _client_process(load: Load, addresses: Sequence[str], begin_at: float) -> Outcome:
    errands = list(_errands(load))
    gc.collect()
    gc.freeze()
    outcome = uvloop.run(_send_all(errands, addresses, begin_at))
    used = resource.getrusage(resource.RUSAGE_SELF)
    outcome.cpu_s = used.ru_utime + used.ru_stime
    return outcome


def _errands(load: Load) -> Iterator[Errand]:
    """Draw the requests; this happens before the first is sent, or it would delay the others."""
    rng = random.Random(load.seed)
    times = arrivals("poisson", load.rate, load.seed)
    for due_s in itertools.takewhile(lambda due: due < load.seconds, times):
        shape = WORKLOADS[load.workload](rng, load.scale, DEFAULT_CAPS[load.workload])
        prompt = prompt_ids(shape, rng, VOCAB_SIZE)
        yield Errand(due_s, prompt, shape.output_tokens, Slo(slo_class=rng.choice(CLASSES)))


async def _send_all(errands: Sequence[Errand], addresses: Sequence[str], begin_at: float) -> Outcome:
    """Send open loop, to the routers in turn."""
    outcome = Outcome()
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                AsyncClient([*addresses[first:], *addresses[:first]], timeout=Timeout(total_s=120))
            )
            for first in range(len(addresses))
        ]
        async with asyncio.TaskGroup() as group:
            for client, errand in zip(itertools.cycle(clients), errands, strict=False):
                late_s = time.time() - begin_at - errand.due_s
                if late_s < 0:
                    await asyncio.sleep(-late_s)
                outcome.late_ms.append(max(0.0, late_s * 1000))
                group.create_task(_one(client, errand, outcome))
    return outcome


async def _one(client: AsyncClient, errand: Errand, outcome: Outcome) -> None:
    outcome.sent += 1
    try:
        done = await client.complete(
            errand.prompt,
            sampling=Sampling(temperature=0.0),
            stop=Stop(max_tokens=errand.output_tokens, ignore_eos=True),
            slo=errand.slo,
        )
    except BatonError as error:
        outcome.count(f"{type(error).__name__}: {error}"[:120])
        return
    outcome.finished += 1
    outcome.resumed += done.resumes > 0
    outcome.tokens += len(done.choices[0].token_ids)
    outcome.wrong_length += len(done.choices[0].token_ids) != errand.output_tokens
    outcome.ttft_ms.append(done.finished.delivery.ttft_ms)
