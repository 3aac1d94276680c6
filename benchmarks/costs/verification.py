"""Measure the cost of certainty: the checksums of a handoff, and the bookkeeping that relays each token once.

    python -m benchmarks verification --seeds 1,2,3,4,5

Checksums cannot be switched off, so they are timed separately. A fleet of the demo model with one prefill and
one decode worker serves prompts one at a time; their TTFTs are the router's. Then this process computes the
checksums of as many blocks as a prompt has, of the model's size, with the workers' own function, on blocks
that are not in the CPU's caches. They count twice, for sender and receiver. This is an upper bound of what
they add to a TTFT: both sides compute them on threads beside the model, and the receiver after the first
token is out.

The bookkeeping is what the router does for each row of a step report so that each token is relayed once and
in order: the number of the message, the group of the handle (an older attempt has none), the choice, the
index compared with the known tokens, the repeated token. These steps are timed on reports that a core then
processes, and compared with all the work of the core, which needs some of them anyway.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from baton import AsyncClient, Sampling, Stop
from baton.fleet import Fleet, FleetSpec
from benchmarks.costs.core_decisions import Bench
from benchmarks.flags import count
from benchmarks.report import report
from engine.kv.kv_pool import KVPool
from engine.model.model import load_model
from kvtransfer.pools.verify import checksum_blocks
from reporting.progress import progress_bars
from reporting.quantiles import quantile
from reporting.section import Section, at_most, table
from reporting.tables import cell
from router.core.deliver import choice_of, fault_of
from router.core.model.fleet import Worker
from scheduling.columns import TokenColumns
from services.rpc.numbering import Incoming

PROMPT_TOKENS = (100, 1000, 4000)
BLOCK_SIZE = 16
POOL_BLOCKS = 4096
"""256 MiB of the demo model's blocks: more than any cache."""
MOST_SHARE = 0.03
ROWS = (1, 16, 64, 256)
REPORTS = 300
MOST_US = 2.0
VOCAB_SIZE = 2048


@dataclass(frozen=True, slots=True)
class Checked:
    """Median seconds for prompts of one length: the router's TTFT, and the checksums of both sides."""

    ttft_s: float
    digest_s: float

    @property
    def share(self) -> float:
        return self.digest_s / self.ttft_s


@dataclass(frozen=True, slots=True)
class Booked:
    """Microseconds per token, for reports of one size."""

    bookkeeping_us: float
    whole_us: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--requests", type=count, default=7, metavar="N", help="requests of each length, for each seed (7)"
    )


def run(args: argparse.Namespace) -> int:
    return report(args, _sections(args))


def _sections(args: argparse.Namespace) -> Iterator[Section]:
    yield checksums_section(asyncio.run(_checksums(args.model, args.requests, args.seeds)))
    yield bookkeeping_section([{rows: bookkeeping(rows, seed) for rows in ROWS} for seed in args.seeds])


async def _checksums(model: Path, requests: int, seeds: Sequence[int]) -> list[dict[int, Checked]]:
    """Measure by seed and length, on one fleet."""
    flags = ("--num-blocks", "1024")
    spec = FleetSpec(model=model, placement="disaggregated", extra_args={"prefill": flags, "decode": flags})
    digests = Digests(model)
    found: list[dict[int, Checked]] = []
    with progress_bars() as progress:
        bar = progress.add_task("checksums", total=len(seeds) * len(PROMPT_TOKENS) * requests)
        async with Fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
            await _ttft_s(client, random.Random(0), PROMPT_TOKENS[-1])
            for seed in seeds:
                rng, ttft_s = random.Random(seed), {length: list[float]() for length in PROMPT_TOKENS}
                for _ in range(requests):
                    for length in PROMPT_TOKENS:
                        ttft_s[length].append(await _ttft_s(client, rng, length))
                        progress.advance(bar)
                found.append(
                    {
                        length: Checked(quantile(times, 0.5), quantile(digests.both_s(length, requests), 0.5))
                        for length, times in ttft_s.items()
                    }
                )
    return found


async def _ttft_s(client: AsyncClient, rng: random.Random, num_tokens: int) -> float:
    """Return the TTFT of a new prompt, alone on the fleet."""
    prompt = [rng.randrange(3, VOCAB_SIZE) for _ in range(num_tokens)]
    done = await client.complete(
        prompt, sampling=Sampling(temperature=0.0), stop=Stop(max_tokens=4, ignore_eos=True)
    )
    return done.finished.delivery.ttft_ms / 1000


class Digests:
    """Blocks of a model's size with random content."""

    def __init__(self, model: Path) -> None:
        layout = load_model(model, torch.float32, torch.device("cpu")).block_layout(BLOCK_SIZE)
        self._pool = KVPool(layout, POOL_BLOCKS)
        self._pool.tensor.normal_()
        self._next = 0

    def both_s(self, num_tokens: int, times: int) -> list[float]:
        """Return the time of the sender's and the receiver's checksums of a prompt, several times."""
        num_blocks = -(-num_tokens // BLOCK_SIZE)
        return [self._one_s(num_blocks) + self._one_s(num_blocks) for _ in range(times)]

    def _one_s(self, num_blocks: int) -> float:
        if self._next + num_blocks > POOL_BLOCKS:
            self._next = 0
        blocks = range(self._next, self._next + num_blocks)
        self._next += num_blocks
        began = time.perf_counter()
        checksum_blocks(self._pool, blocks)
        return time.perf_counter() - began


def bookkeeping(rows: int, seed: int) -> Booked:
    """Time the reports of a worker whose sequences each get a token per step."""
    bench = Bench(16, seed)
    handles = bench.decode(rows)
    worker, incoming = bench.core.state.fleet.workers[bench.workers[0].key], Incoming()
    booked_us, whole_us = [], []
    gc.collect()
    gc.disable()
    for index in range(REPORTS):
        event = bench.step(handles, index)
        booked_us.append(_us(partial(_book, worker, incoming, event.tokens)) / rows)
        whole_us.append(_us(partial(bench.tell, event)) / rows)
    gc.enable()
    return Booked(quantile(booked_us, 0.5), quantile(whole_us, 0.5))


def _us(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e6


def _book(worker: Worker, incoming: Incoming, tokens: TokenColumns) -> None:
    """Do the checks of `router.core.deliver` row by row, and nothing else."""
    incoming.take(incoming.taken + 1)
    for row, handle in enumerate(tokens.handles):
        group = worker.groups.get(handle)
        assert group is not None, "each was dispatched"
        choice, index = choice_of(group, tokens.choices[row]), tokens.indexes[row]
        fault = fault_of(choice, index, tokens.token_ids[row])
        assert choice is not None, "each has one choice"
        assert not fault, fault
        assert index == len(choice.token_ids), "none is repeated"


def checksums_section(found: Sequence[dict[int, Checked]]) -> Section:
    by_length = {length: [seed[length] for seed in found] for length in PROMPT_TOKENS}
    goals = tuple(
        at_most(f"{length} tokens: checksums / TTFT", (seed.share for seed in checked), MOST_SHARE, ".2%")
        for length, checked in by_length.items()
    )
    columns: dict[str, Callable[[int], object]] = {
        "prompt tokens": str,
        "TTFT, ms": lambda length: cell([seed.ttft_s for seed in by_length[length]], 1000, ".0f"),
        "checksums of both sides, ms": lambda length: cell(
            [seed.digest_s for seed in by_length[length]], 1000
        ),
    }
    method = "Medians of each seed. The whole time of the checksums, hidden behind computing or not."
    return Section("Checksums of a handoff", method, goals, (table(by_length, columns),))


def bookkeeping_section(found: Sequence[dict[int, Booked]]) -> Section:
    by_rows = {rows: [seed[rows] for seed in found] for rows in ROWS}
    goals = tuple(
        at_most(
            f"reports of {rows}: bookkeeping, µs a token", (seed.bookkeeping_us for seed in booked), MOST_US
        )
        for rows, booked in by_rows.items()
    )
    columns: dict[str, Callable[[int], object]] = {
        "tokens of a report": str,
        "bookkeeping, µs a token": lambda rows: cell([seed.bookkeeping_us for seed in by_rows[rows]]),
        "all of the core's work, µs a token": lambda rows: cell([seed.whole_us for seed in by_rows[rows]]),
    }
    method = f"Medians over {REPORTS} reports of each seed."
    return Section("Each token once", method, goals, (table(by_rows, columns),))
