"""Sends requests to a fleet under test and looks at what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.samples import Sample

from baton import AsyncClient, Completion, Regex, Sampling, Stop
from baton.fleet import Fleet, FleetSpec
from baton.types import Path as RequestPath
from baton.types.chat import Prompt
from baton.types.snapshots import FleetSnapshot
from benchmarks.doors.observe import scrape, total
from runtime.state.errors import StoreUnavailable
from runtime.state.store import Store
from tests.fleets import DEMO_MODEL
from tests.patience import PATIENCE_S

FEW = ("--max-num-seqs", "16", "--token-budget", "128")
"""Sizes of steps that are measured quickly at a start: with the default ones it takes seconds in float64."""
EXACT = ("--dtype", "float64", "--num-blocks", "256", *FEW)
"""Arguments of workers whose tokens are the same in any batch. What they cost is measured once for all."""
BOTH_PATHS = {"router-0": ("--placement", "disaggregated"), "router-1": ("--placement", "aggregated")}
"""Arguments of two routers that take one path each."""
TRIES = 10
"""A stream may end before it is struck, on a machine that lets this process stand still. Then try again."""


def exact(
    run_dir: Path,
    *,
    model: Path = DEMO_MODEL,
    more: Mapping[str, Sequence[str]] | None = None,
    **settings: Any,
) -> FleetSpec:
    """Return a fleet whose workers have the arguments `EXACT`, and more by role or by name of a process."""
    added = dict(more or {})
    workers = {role: (*EXACT, *added.pop(role, ())) for role in ("prefill", "decode")}
    return FleetSpec(model=model, run_dir=run_dir, extra_args={**workers, **added}, **settings)


@dataclass(frozen=True, slots=True)
class Answer:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached_prompt_tokens: int
    attempts: int = 1
    """More than one where a worker counted as lost. A later attempt finds blocks of an earlier one."""
    is_handed_over: bool = False
    """True if a prefill worker computed the prompt, in the only attempt."""


async def greedy(client: AsyncClient, prompts: Sequence[list[int]], max_tokens: int) -> list[Answer]:
    """All prompts at once, greedily, with log-probabilities, over the end of sequence."""

    async def one(prompt: list[int]) -> Answer:
        found = await client.complete(
            prompt,
            sampling=Sampling(temperature=0.0, logprobs=0),
            stop=Stop(max_tokens=max_tokens, ignore_eos=True),
        )
        choice = found.choices[0]
        logprobs = tuple(token.logprob for token in choice.logprobs)
        usage = found.finished.usage
        is_handed_over = found.finished.path is RequestPath.DISAGGREGATED and usage.attempts == 1
        return Answer(choice.token_ids, logprobs, usage.cached_prompt_tokens, usage.attempts, is_handed_over)

    return await asyncio.gather(*(one(prompt) for prompt in prompts))


async def sampled(
    client: AsyncClient, prompt: list[int], max_tokens: int, seed: int, n: int = 1
) -> Completion:
    return await client.complete(
        prompt,
        sampling=Sampling(temperature=1.0, seed=seed, n=n),
        stop=Stop(max_tokens=max_tokens, ignore_eos=True),
    )


async def outputs(
    fleet: Fleet, prompt: Prompt, sampling: Sampling, max_tokens: int, output_format: Regex | None
) -> list[tuple[object, ...]]:
    """Return all that a request's choices bring: token ids, text and log-probabilities."""
    async with AsyncClient(fleet.router_addresses) as client:
        stop = Stop(max_tokens=max_tokens)
        completion = await client.complete(prompt, sampling=sampling, stop=stop, output_format=output_format)
    return [(choice.token_ids, choice.text, choice.logprobs) for choice in completion.choices]


async def until(condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition of other processes."""
    try:
        async with asyncio.timeout(timeout_s):
            while not await condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {timeout_s:g} s") from None


async def snapshot(client: AsyncClient) -> FleetSnapshot:
    watch = client.watch(0.1)
    try:
        return await anext(watch)
    finally:
        await watch.aclose()


async def busy_workers(client: AsyncClient, role: str = "decode") -> list[str]:
    """Return the workers of a role that run something, or none if what ran has ended.

    A router that has not dispatched it hears of it a little later.
    """
    found: list[str] = []
    for _ in range(100):
        workers = (await snapshot(client)).workers
        found = [
            worker.worker_id
            for worker in workers
            if worker.connected and worker.running and worker.worker_id.startswith(role)
        ]
        if found:
            break
        await asyncio.sleep(0.02)
    return found


def num_given_up(fleet: Fleet) -> int:
    """Return how often routers have given a worker up, each of which may cost a request one attempt.

    On a machine that starves a worker for a second, routers give it up although it lives.
    """
    logs = (fleet.process(name).log_path.read_text(encoding="utf-8") for name in fleet.spec.router_names)
    return sum(log.count("link_broken") for log in logs)


async def ask(fleet: Fleet, prompts: list[list[int]]) -> list[Answer]:
    """One prompt after the other, so that each finds what those before have left."""
    async with AsyncClient(fleet.router_addresses) as client:
        answers = [(await greedy(client, [prompt], 8))[0] for prompt in prompts]
        await assert_all_is_freed(fleet, client)
    return answers


async def assert_all_is_freed(fleet: Fleet, client: AsyncClient) -> None:
    """Every worker has all blocks free or cached, nothing runs, and Redis holds no lease, credit or entry."""

    async def idle() -> bool:
        workers = (await snapshot(client)).workers
        return all(
            worker.running == worker.waiting == 0 and worker.free_blocks == worker.num_blocks
            for worker in workers
            if worker.connected
        )

    await until(idle, "all blocks free or cached")
    store = await Store.connect(fleet.redis_url)

    async def nothing_held() -> bool:
        try:
            records = await store.list_workers()
            held = [await store.leases(record.key) for record in records] + [
                await store.credits(record.key) for record in records
            ]
            return not any(held) and (await store.queue_status()).waiting_tokens == 0
        except StoreUnavailable:  # a starved Redis takes longer than a call waits
            return False

    try:
        await until(nothing_held, "no lease, credit or queue entry")
    finally:
        await store.close()


async def metric(fleet: Fleet, process: str, name: str) -> float:
    """A metric of one process, summed over its labels."""
    return total(await _samples(fleet, process), name)


async def labelled(fleet: Fleet, process: str, name: str, label: str) -> dict[str, float]:
    """A metric of one process by the values of one label."""
    samples = await _samples(fleet, process)
    return {sample.labels[label]: float(sample.value) for sample in samples if sample.name == name}


async def _samples(fleet: Fleet, process: str) -> list[Sample]:
    """Scrape a process, again if it was too busy to respond."""
    for left in reversed(range(TRIES)):
        try:
            return await scrape(fleet.process(process).metrics_address)
        except OSError:
            if not left:
                raise
    raise AssertionError("it has returned or raised")


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has forked."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
