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
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.costs.prefixes.comparison import (
    LENGTHS,
    Asked,
    Figures,
    add_engine_flags,
    figures_of,
    prompt_of,
    section_of,
    settings_of,
)
from benchmarks.decodes import decode, fixed_length
from benchmarks.report import report
from benchmarks.settings import BLOCK_SIZE
from engine.build import BuiltEngine, build
from engine.core.commands import BlocksRead
from engine.core.memory.prefix_reads import KVDisk
from engine.core.report import Reading, StepReport
from engine.kv.kv_pool import KVPool
from kvtransfer.disk.tier import DiskTier, Folder
from reporting.progress import tracked
from scheduling.memory.disk_reads import read_limit_s
from worker.engine_thread import Inbox

POOL_TOKENS = LENGTHS[-1] + 4 * BLOCK_SIZE
BUDGET_BYTES = 8 * 1024**3
WAIT_S = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_flags(parser)
    parser.add_argument(
        "--folder", type=Path, metavar="PATH", help="where the files are (the folder for temporary files)"
    )


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

        return build(replace(settings_of(args, POOL_TOKENS), open_disk=open_disk))


def run(args: argparse.Namespace) -> int:
    """Ask for prompts of each length, once per seed."""
    torch.set_num_threads(args.threads)
    found: dict[int, list[Figures]] = {length: [] for length in LENGTHS}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        bench = Bench(args, Path(folder))
        for seed, length in tracked([(s, n) for s in args.seeds for n in LENGTHS], "prompts"):
            found[length].append(_measure(bench, random.Random(f"{seed} {length}"), length))
        block_bytes = bench.engine.runner.pool.block_bytes
        bench.tier.close([], WAIT_S)
    section = section_of(
        args,
        "Prefixes on a disk",
        found,
        ("page cache", "device"),
        ("worker reads",),
        block_bytes=block_bytes,
        note="'worker reads': 1 if a worker would read.",
    )
    return report(args, [section])


def _measure(bench: Bench, rng: random.Random, length: int) -> Figures:
    """Time a prompt that is computed, and read from the page cache and from the device."""
    prompt = prompt_of(rng, length + 1)  # the last token is always computed
    computed = bench.ask(prompt)
    bench.push_out(rng)
    would_read = bench.would_read(length)
    warm = bench.ask(prompt)
    bench.push_out(rng)
    bench.leave_page_cache()
    cold = bench.ask(prompt)
    return figures_of(computed, (warm, cold), [would_read], length)
