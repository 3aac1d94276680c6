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
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.cpu.random_model import random_model
from benchmarks.decodes import decode, fixed_length
from benchmarks.flags import count
from benchmarks.report import report
from engine.build import BuiltEngine, EngineSettings, build
from engine.core.commands import BlocksRead
from engine.core.memory.prefix_reads import KVTiers
from engine.core.report import Reading, StepReport
from engine.kv.kv_pool import KVPool
from engine.model.model import DTYPES
from kvtransfer.tiers.disk import DiskSettings
from kvtransfer.tiers.folder import Folder
from kvtransfer.tiers.tiers import Tiers
from reporting.progress import tracked
from reporting.section import Goal, Section, markdown
from reporting.tables import cell
from scheduling.memory.disk_reads import read_limit_s
from scheduling.memory.prefix_reads import TierHit
from scheduling.memory.tiers import Tier
from scheduling.policies import DEFAULT
from worker.engine_thread import Inbox

BLOCK_SIZE = 16
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
POOL_TOKENS = LENGTHS[-1] + 4 * BLOCK_SIZE
VOCAB = 500
"""Token ids of prompts are below this, which every model's vocabulary exceeds."""
DISK_BYTES = 8 * 1024**3
HOST_BYTES = 1024**3
WAIT_S = 600.0
SPECS = (".1f", ".1f", ".1f", ".1f", ".2f", ".2f", ".2f", ".0f", ".0f")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", type=Path, metavar="PATH", help="a checkpoint (a Llama with 200 million random weights)")
    add("--dtype", choices=DTYPES, default="bfloat16", help="the type of weights and KV (bfloat16)")
    add("--threads", type=count, default=2, metavar="N", help="threads of the worker (2)")
    add("--folder", type=Path, metavar="PATH", help="where the files are (the folder for temporary files)")


class EagerTiers(Tiers):
    """Expects reads to take no time, so that all are begun; takes the time that steps copy blocks."""

    num_copied = 0
    copied_s = 0.0

    def keep(self, block: int, block_hash: bytes) -> None:
        began_s = time.perf_counter()
        super().keep(block, block_hash)
        self.copied_s += time.perf_counter() - began_s
        self.num_copied += 1

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

        def read(reading: Reading) -> None:
            ended = threading.Event()
            running = self.tiers.read(reading.blocks, reading.hashes, ended.set)
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
        def open_tiers(pool: KVPool, identity: str) -> KVTiers:
            disk = DiskSettings(Folder(self._folder), DISK_BYTES, identity)
            self._opened.append(EagerTiers(pool, HOST_BYTES, disk))
            return self._opened[0]

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
                open_tiers=open_tiers,
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
        bench.tiers.close([], WAIT_S)
        copy_ms = 1000 * bench.tiers.copied_s / bench.tiers.num_copied
    columns = (
        "prompt tokens",
        "computed, ms",
        "host memory, ms",
        "page cache, ms",
        "device, ms",
        "computed / host memory",
        "computed / page cache",
        "computed / device",
        "worker reads host memory",
        "worker reads disk",
    )
    rows = [(str(length), *_cells(figures)) for length, figures in found.items()]
    goals = (
        Goal(
            f"{LENGTHS[-1]} tokens: computed / read from host memory",
            tuple(figures[4] for figures in found[LENGTHS[-1]]),
            1.0,
        ),
        Goal(
            f"{LENGTHS[-1]} tokens: computed / read from the device",
            tuple(figures[6] for figures in found[LENGTHS[-1]]),
            1.0,
        ),
    )
    method = (
        f"{(args.model or random_model()).name}, {args.dtype}, {args.threads} threads; blocks of "
        f"{BLOCK_SIZE} tokens, {block_mb:.2f} MB each; one request at a time. "
        f"'worker reads': 1 if a worker would read. A step copies a block to host memory in {copy_ms:.3f} ms."
    )
    details = {"found": {str(length): figures for length, figures in found.items()}}
    title, tables = "Prefixes in host memory and on a disk", (markdown(columns, rows),)
    return report(args, [Section(title, method, goals, tables, details)])


def _measure(bench: Bench, rng: random.Random, length: int) -> tuple[float, ...]:
    """Return ms computed and from each source, the ratios, and 1 for each tier that a worker would read."""
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
    reads = (from_host, warm, cold)
    for again in reads:
        if (again.token_id, again.cached_tokens) != (computed.token_id, length):
            raise ValueError(f"{length} tokens: {again} after {computed}; a tier has changed the output")
    seconds = [computed.seconds, *(again.seconds for again in reads)]
    ratios = [computed.seconds / again.seconds for again in reads]
    return (*(1000 * each for each in seconds), *ratios, *map(float, would_read))


def prompt_of(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCAB) for _ in range(length))


def _cells(figures: Sequence[tuple[float, ...]]) -> list[str]:
    columns = zip(*figures, strict=True)
    return [cell(column, spec=spec) for column, spec in zip(columns, SPECS, strict=True)]
