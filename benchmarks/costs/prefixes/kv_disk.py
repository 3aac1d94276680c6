"""Measure from which prompt length on reading KV from a disk is faster than computing it.

Each prompt is computed, pushed out of the pool by others, and asked for again twice, so that it comes from
the disk: once as the system's page cache has it, and once after its files were taken out of that cache. The
three outputs are compared. Times are of the clock, from the request to its only token, on an engine that does
nothing else. Reads run whatever they are expected to take, so that both are measured at each length; what a
worker would decide is shown beside them.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.cpu.random_model import random_model
from benchmarks.decodes import decode, fixed_length
from benchmarks.flags import count
from benchmarks.report import report
from engine.build import BuiltEngine, build
from engine.core.commands import BlocksRead
from engine.core.memory.prefix_reads import KVDisk
from engine.core.report import Reading, StepReport
from engine.kv.kv_pool import KVPool
from engine.model.model import DTYPES
from engine.settings import EngineSettings
from kvtransfer.disk.tier import DiskTier, Folder
from reporting.progress import tracked
from reporting.section import Goal, Section, markdown
from reporting.tables import cell
from scheduling.memory.disk_reads import read_limit_s
from scheduling.policies import DEFAULT
from worker.engine_thread import Inbox

BLOCK_SIZE = 16
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
POOL_TOKENS = LENGTHS[-1] + 4 * BLOCK_SIZE
VOCAB = 500
"""Token ids of prompts are below this, which every model's vocabulary exceeds."""
BUDGET_BYTES = 8 * 1024**3
WAIT_S = 600.0
SPECS = (".1f", ".1f", ".1f", ".2f", ".2f", ".0f")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", type=Path, metavar="PATH", help="a checkpoint (a Llama with 200 million random weights)")
    add("--dtype", choices=DTYPES, default="bfloat16", help="the type of weights and KV (bfloat16)")
    add("--threads", type=count, default=2, metavar="N", help="threads of the worker (2)")
    add("--folder", type=Path, metavar="PATH", help="where the files are (the folder for temporary files)")


class EagerTier(DiskTier):
    """Expects reads to take no time, so that all are begun."""

    def read_s(self, num_blocks: int) -> float:
        return 0.0

    def expected_s(self, num_blocks: int) -> float:
        """Return what a worker would expect."""
        return super().read_s(num_blocks)


class Bench:
    """An engine with a disk, and one prompt at a time."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._tiers: list[EagerTier] = []
        self._folder = folder
        self.engine = self._build(args)
        (self.tier,) = self._tiers
        self.tier.start()
        if not self.tier.wait_until_open(WAIT_S):
            raise OSError(f"--folder is {folder}; accepted: one that can be read")

    def ask(self, prompt: tuple[int, ...]) -> Asked:
        """Return how long one prompt takes, its first token, and how much of it came from elsewhere."""
        inbox, token_ids, cached = Inbox(), list[int](), 0

        def read(reading: Reading) -> None:
            ended = threading.Event()
            running = self.tier.read(reading.blocks, reading.hashes, ended.set)
            ended.wait()  # nothing else runs
            inbox.put(BlocksRead(reading.handle, running.stop()))

        def emit(told: StepReport) -> None:
            nonlocal cached
            token_ids.extend(told.tokens.token_ids)
            cached += sum(prefilled.cached_tokens for prefilled in told.prefilled)
            for reading in told.reads:
                read(reading)
            if told.freed:
                inbox.close()

        inbox.put(decode(prompt, fixed_length(1)))
        began_s = time.perf_counter()
        self.engine.loop.run(inbox.drain, emit, lambda: inbox.is_closed)
        return Asked(time.perf_counter() - began_s, token_ids[0], cached)

    def push_out(self, rng: random.Random) -> None:
        """Let other content take the whole pool, and wait until what was there is on the disk."""
        self.ask(prompt_of(rng, POOL_TOKENS - BLOCK_SIZE))
        if not self.tier.wait_until_written(WAIT_S):
            raise OSError("the disk has not written in ten minutes")

    def leave_page_cache(self) -> None:
        """Let the next read of any file come from the device."""
        for path in self._folder.rglob("*.kv"):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def would_read(self, num_tokens: int) -> bool:
        """Return the decision of a worker for a prompt of which the disk has so many tokens."""
        expected_s = self.tier.expected_s(num_tokens // BLOCK_SIZE)
        return read_limit_s(num_tokens, 0, expected_s, self.engine.cost) is not None

    def _build(self, args: argparse.Namespace) -> BuiltEngine:
        def open_disk(pool: KVPool, identity: str) -> KVDisk:
            self._tiers.append(EagerTier(Folder(self._folder), BUDGET_BYTES, pool, identity))
            return self._tiers[0]

        return build(
            EngineSettings(
                model=args.model or random_model(),
                dtype=DTYPES[args.dtype],
                device=torch.device("cpu"),
                block_size=BLOCK_SIZE,
                num_blocks=POOL_TOKENS // BLOCK_SIZE,
                kv_memory_mb=None,
                max_num_seqs=4,
                token_budget=256,
                policy=DEFAULT,
                open_disk=open_disk,
            )
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt, from the request to its token."""

    seconds: float
    token_id: int
    cached_tokens: int


def run(args: argparse.Namespace) -> int:
    """Ask for prompts of each length, once per seed."""
    torch.set_num_threads(args.threads)
    found: dict[int, list[tuple[float, ...]]] = {length: [] for length in LENGTHS}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        bench = Bench(args, Path(folder))
        for seed, length in tracked([(s, n) for s in args.seeds for n in LENGTHS], "prompts"):
            found[length].append(_measure(bench, random.Random(f"{seed} {length}"), length))
        block_mb = bench.engine.runner.pool.block_bytes / 1e6
        bench.tier.close([], WAIT_S)
    columns = (
        "prompt tokens",
        "computed, ms",
        "page cache, ms",
        "device, ms",
        "computed / page cache",
        "computed / device",
        "worker reads",
    )
    rows = [(str(length), *_cells(figures)) for length, figures in found.items()]
    goals = (
        Goal(
            f"{LENGTHS[-1]} tokens: computed / read from the device",
            tuple(figures[4] for figures in found[LENGTHS[-1]]),
            1.0,
        ),
    )
    method = (
        f"{(args.model or random_model()).name}, {args.dtype}, {args.threads} threads; blocks of "
        f"{BLOCK_SIZE} tokens, {block_mb:.2f} MB each; one request at a time. "
        "'worker reads': 1 if a worker would read."
    )
    details = {"found": {str(length): figures for length, figures in found.items()}}
    return report(args, [Section("Prefixes on a disk", method, goals, (markdown(columns, rows),), details)])


def _measure(bench: Bench, rng: random.Random, length: int) -> tuple[float, ...]:
    """Return ms computed, from the page cache and from the device, ratios, and 1 if a worker would read."""
    prompt = prompt_of(rng, length + 1)  # the last token is always computed
    computed = bench.ask(prompt)
    bench.push_out(rng)
    would_read = bench.would_read(length)
    warm = bench.ask(prompt)
    bench.push_out(rng)
    bench.leave_page_cache()
    cold = bench.ask(prompt)
    for again in (warm, cold):
        if (again.token_id, again.cached_tokens) != (computed.token_id, length):
            raise ValueError(f"{length} tokens: {again} after {computed}; the disk has changed the output")
    seconds = (computed.seconds, warm.seconds, cold.seconds)
    ratios = (computed.seconds / warm.seconds, computed.seconds / cold.seconds)
    return (*(1000 * each for each in seconds), *ratios, float(would_read))


def prompt_of(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCAB) for _ in range(length))


def _cells(figures: Sequence[tuple[float, ...]]) -> list[str]:
    columns = zip(*figures, strict=True)
    return [cell(column, spec=spec) for column, spec in zip(columns, SPECS, strict=True)]
