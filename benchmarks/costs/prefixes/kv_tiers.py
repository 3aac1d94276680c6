"""Measure from which prompt length on reading KV from host memory or a disk is faster than computing it.

Each prompt is computed, pushed out of the pool by others, and asked for again three times: it comes from host
memory, then from the disk as the system's page cache has it, and then from the disk after its files were
taken out of that cache. The four outputs are compared. Times are of the clock, from the request to its only
token, on an engine that does nothing else. Reads run whatever they are expected to take, so that all are
measured at each length; what a worker would decide is shown beside them. The time in which steps copy blocks
to host memory is measured as well.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from collections.abc import Sequence
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
from engine.core.memory.prefix_reads import KVTiers
from engine.core.report import Mark, Reading, StepReport
from engine.kv.kv_pool import KVPool
from kvtransfer.tiers.disk import DiskSettings
from kvtransfer.tiers.folder import Folder
from kvtransfer.tiers.tiers import Tiers
from reporting.progress import tracked
from scheduling.memory.disk_reads import read_limit_s
from scheduling.memory.prefix_reads import TierHit
from scheduling.memory.tiers import Tier
from worker.engine_thread import Inbox
from worker.handoff.tier_slots import copies_for

POOL_TOKENS = LENGTHS[-1] + 4 * BLOCK_SIZE
DISK_BYTES = 8 * 1024**3
HOST_BYTES = 1024**3
WAIT_S = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_flags(parser)
    parser.add_argument(
        "--folder", type=Path, metavar="PATH", help="where the files are (the folder for temporary files)"
    )


class EagerTiers(Tiers):
    """Expects reads to take no time, so that all are begun; takes the time that steps copy blocks."""

    num_copied = 0
    copied_s = 0.0

    def keep(self, blocks: Sequence[int], hashes: Sequence[bytes]) -> None:
        began_s = time.perf_counter()
        super().keep(blocks, hashes)
        self.copied_s += time.perf_counter() - began_s
        self.num_copied += len(blocks)

    def readable(self, hashes: Sequence[bytes]) -> list[TierHit]:
        return [replace(hit, read_s=0.0) for hit in super().readable(hashes)[-1:]]

    def expected_s(self, num_blocks: int, tier: Tier) -> float:
        """Return how long a worker would expect a read from one tier to take."""
        state = self.state(tier)
        return state.wait_s + num_blocks * state.block_s

    def leave_host_memory(self) -> None:
        """Let all blocks in host memory leave for the disk."""
        with self._lock:
            max_kept, self._max_kept = self._max_kept, 0
            self._shed()
            self._max_kept = max_kept


class Bench:
    """An engine with host memory and a disk, and one prompt at a time."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._opened: list[EagerTiers] = []
        self._folder = folder
        self.engine = self._build(args)
        (self.tiers,) = self._opened
        self.tiers.start()
        if not self.tiers.wait_until_open(WAIT_S):
            raise OSError(f"--folder is {folder}; accepted: one that can be read")

    def ask(self, prompt: tuple[int, ...]) -> Asked:
        """Return how long one prompt takes, its first token, and how much of it came from elsewhere."""
        inbox, token_ids, cached = Inbox(), list[int](), 0

        def read(reading: Reading, behind: Mark | None) -> None:
            ended = threading.Event()
            running = self.tiers.read(reading.blocks, reading.hashes, ended.set, behind)
            ended.wait()  # nothing else runs
            inbox.put(BlocksRead(reading.handle, running.stop()))

        def emit(told: StepReport) -> None:
            nonlocal cached
            token_ids.extend(told.tokens.token_ids)
            cached += sum(prefilled.cached_tokens for prefilled in told.prefilled)
            for reading in told.reads:
                read(reading, told.received_behind)
            if told.freed:
                inbox.close()

        inbox.put(decode(prompt, fixed_length(1)))
        began_s = time.perf_counter()
        self.engine.loop.run(inbox.drain, emit, lambda: inbox.is_closed)
        return Asked(time.perf_counter() - began_s, token_ids[0], cached)

    def push_out(self, rng: random.Random) -> None:
        """Let other content take the whole pool."""
        self.ask(prompt_of(rng, POOL_TOKENS - BLOCK_SIZE))

    def leave_host_memory(self) -> None:
        """Wait until all that was in host memory is on the disk."""
        self.tiers.leave_host_memory()
        if not self.tiers.wait_until_written(WAIT_S):
            raise OSError("the disk has not written in ten minutes")

    def leave_page_cache(self) -> None:
        """Let the next read of any file come from the device."""
        for path in self._folder.rglob("*.kv"):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def would_read(self, num_tokens: int, tier: Tier) -> bool:
        """Return the decision of a worker for a prompt of which a tier has so many tokens."""
        expected_s = self.tiers.expected_s(num_tokens // BLOCK_SIZE, tier)
        return read_limit_s(num_tokens, 0, expected_s, self.engine.cost) is not None

    def _build(self, args: argparse.Namespace) -> BuiltEngine:
        def open_tiers(pool: KVPool, identity: str, _: int) -> KVTiers:
            disk = DiskSettings(Folder(self._folder), DISK_BYTES, identity)
            self._opened.append(EagerTiers(pool, HOST_BYTES, disk, copies_for(pool)))
            return self._opened[0]

        return build(replace(settings_of(args, POOL_TOKENS), open_tiers=open_tiers))


def run(args: argparse.Namespace) -> int:
    """Ask for prompts of each length, once per seed."""
    torch.set_num_threads(args.threads)
    found: dict[int, list[Figures]] = {length: [] for length in LENGTHS}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        bench = Bench(args, Path(folder))
        for seed, length in tracked([(s, n) for s in args.seeds for n in LENGTHS], "prompts"):
            found[length].append(_measure(bench, random.Random(f"{seed} {length}"), length))
        block_bytes = bench.engine.runner.pool.block_bytes
        bench.tiers.close([], WAIT_S)
        copy_ms = 1000 * bench.tiers.copied_s / bench.tiers.num_copied
    section = section_of(
        args,
        "Prefixes in host memory and on a disk",
        found,
        ("host memory", "page cache", "device"),
        ("worker reads host memory", "worker reads disk"),
        block_bytes=block_bytes,
        note=f"'worker reads': 1 if a worker would read. A step copies a block to host memory in "
        f"{copy_ms:.3f} ms.",
    )
    return report(args, [section])


def _measure(bench: Bench, rng: random.Random, length: int) -> Figures:
    """Time a prompt that is computed, and read from host memory, the page cache and the device."""
    prompt = prompt_of(rng, length + 1)  # the last token is always computed
    computed = bench.ask(prompt)
    bench.push_out(rng)
    would_read = [bench.would_read(length, tier) for tier in (Tier.HOST, Tier.DISK)]
    from_host = bench.ask(prompt)
    bench.push_out(rng)
    bench.leave_host_memory()
    warm = bench.ask(prompt)
    bench.push_out(rng)
    bench.leave_host_memory()
    bench.leave_page_cache()
    cold = bench.ask(prompt)
    return figures_of(computed, (from_host, warm, cold), would_read, length)
