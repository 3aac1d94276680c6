"""Measure from which prompt length on fetching KV from another worker is faster than computing it.

Two engines of one model run in this process, each with the thread, the sides of the handoff and the
transports of a worker: one has computed a prompt and lends its blocks, the other one computes it, forgets it
and fetches it, once through shared memory and once over gRPC. The outputs are compared. Times are of the
clock, from the command to the only token, while nothing else runs. Fetches run whatever they are expected to
take, so that both are measured at each length; what a worker would decide is shown beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import grpc
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
from engine.build import build
from engine.core.report import StepReport
from engine.kv.kv_pool import KVPool
from kvtransfer.fence import FenceGuard
from kvtransfer.loans.links import Links
from kvtransfer.pools.in_place import InPlace
from kvtransfer.receiver import Receiver
from kvtransfer.service import KVTransferService
from kvtransfer.transports.shm import ShmServer
from kvtransfer.transports.transport import TransportMode
from reporting.progress import tracked
from scheduling.memory.disk_reads import MOST_S
from scheduling.memory.prefix_reads import PrefixRead, choose_read
from scheduling.request import FailureReason, PrefixSource
from worker.engine_thread import EngineThread
from worker.handoff.fetch_side import FetchSide
from worker.handoff.sender_side import SenderSide
from worker.handoff.sides import HandoffSides
from worker.metrics import WorkerMetrics

POOL_TOKENS = 8 * LENGTHS[-1]
"""A quarter of it is more than the longest prompt: no more may be on loan."""
MODES = (TransportMode.SHM, TransportMode.GRPC)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_flags(parser)


class EagerLinks(Links):
    """Expects fetches to take no time, so that all are begun."""

    def fetch_s(self, incarnation: str, num_blocks: int) -> float:
        return 0.0

    def expected_s(self, incarnation: str, num_blocks: int) -> float:
        """Return what a worker would expect."""
        return super().fetch_s(incarnation, num_blocks)


class Node:
    """An engine with the thread and the handoffs of a worker, and one prompt at a time."""

    def __init__(self, args: argparse.Namespace, incarnation: str, modes: Sequence[TransportMode]) -> None:
        self.incarnation = incarnation
        self.engine = build(replace(settings_of(args, POOL_TOKENS), open_links=self._open_links))
        self.pool = self.engine.runner.pool
        self.links = {mode: EagerLinks(self.pool.block_bytes) for mode in modes}
        self._thread = EngineThread(self.engine.loop, self._on_report)
        self._reports: asyncio.Queue[StepReport] = asyncio.Queue()
        handles = itertools.count(1_000_000)
        self._source = InPlace(self.pool)
        self.sending = SenderSide(
            incarnation,
            self._source,
            BLOCK_SIZE,
            FenceGuard(),
            submit=self._thread.submit,
            fail=_fail,
            metrics=WorkerMetrics(),
            new_handle=lambda: next(handles),
        )
        self._sides = {mode: self._sides_by(mode) for mode in modes}
        self._mode: TransportMode | None = None

    async def start(self, cleanup: AsyncExitStack) -> None:
        for sides in self._sides.values():
            cleanup.push_async_callback(sides.close)
        self._thread.start()
        cleanup.push_async_callback(self._thread.stop)

    async def serve(self, shm_dir: Path, cleanup: AsyncExitStack) -> str:
        """Lend blocks; return the address."""
        shm = ShmServer(self.pool, self.incarnation, shm_dir)
        await shm.start()
        cleanup.push_async_callback(shm.close)
        server = grpc.aio.server()
        KVTransferService(
            self.sending.handoffs,
            self._source,
            fingerprint=self.engine.fingerprint,
            block_size=BLOCK_SIZE,
            shm_socket=str(shm.path),
            lending=self.sending.lending,
        ).add_to(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        cleanup.push_async_callback(server.stop, 0)
        return f"127.0.0.1:{port}"

    async def ask(
        self, prompt: tuple[int, ...], source: PrefixSource | None = None, mode: TransportMode | None = None
    ) -> Asked:
        """Return how long one prompt takes, its first token, and how much of it came from elsewhere."""
        command = decode(prompt, fixed_length(1))
        command = replace(command, spec=replace(command.spec, prefix_source=source))
        self._mode, token_ids, cached = mode, list[int](), 0
        began_s = time.perf_counter()
        self._thread.submit(command)
        is_over = False
        while not is_over:
            told = await self._reports.get()
            token_ids.extend(told.tokens.token_ids)
            cached += sum(prefilled.cached_tokens for prefilled in told.prefilled)
            is_over = command.spec.handle in told.freed
        return Asked(time.perf_counter() - began_s, token_ids[0], cached)

    def forget(self) -> None:
        """Let the pool lose what it has cached. The engine is idle."""
        self.engine.blocks.forget([block for block, _ in self.engine.blocks.cached()])

    def would_fetch(self, mode: TransportMode, source: PrefixSource) -> bool:
        """Return the decision of a worker for a prompt whose blocks the source has."""
        expected_s = self.links[mode].expected_s(source.incarnation, source.num_blocks)
        read = PrefixRead(source.num_blocks * BLOCK_SIZE, expected_s)
        return choose_read([read], 0, self.engine.cost) is not None

    def _open_links(self, pool: KVPool) -> EagerLinks:
        return EagerLinks(pool.block_bytes)

    def _sides_by(self, mode: TransportMode) -> HandoffSides:
        receiver = Receiver(InPlace(self.pool), BLOCK_SIZE, self.engine.fingerprint, mode)
        # Named by the transport, too: the fences of the two would be the same otherwise.
        name = f"{self.incarnation}-{mode.value}"
        fetching = FetchSide(receiver, self.links[mode], name, self._thread.submit, WorkerMetrics())
        return HandoffSides(self.sending, fetching=fetching, receiver=receiver)

    def _on_report(self, told: StepReport) -> None:
        told.reads = [replace(reading, limit_s=MOST_S) for reading in told.reads]
        sides = None if self._mode is None else self._sides[self._mode]
        (self.sending if sides is None else sides).on_report(told)
        self._reports.put_nowait(told)


def _fail(handle: int, reason: FailureReason, message: str) -> None:
    raise RuntimeError(f"{handle}: {reason.name}: {message}")


def run(args: argparse.Namespace) -> int:
    """Ask for prompts of each length, once per seed."""
    torch.set_num_threads(args.threads)
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    found: dict[int, list[Figures]] = {length: [] for length in LENGTHS}
    async with AsyncExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        lender, borrower = Node(args, "lender", ()), Node(args, "borrower", MODES)
        for node in (lender, borrower):
            await node.start(cleanup)
        address = await lender.serve(folder, cleanup)
        await _measure(lender, borrower, address, random.Random("warm"), LENGTHS[-1])
        for seed, length in tracked([(s, n) for s in args.seeds for n in LENGTHS], "prompts"):
            rng = random.Random(f"{seed} {length}")
            found[length].append(await _measure(lender, borrower, address, rng, length))
    section = section_of(
        args,
        "Prefixes from another worker",
        found,
        ("shared memory", "gRPC"),
        ("worker fetches by shared memory", "by gRPC"),
        block_bytes=borrower.pool.block_bytes,
        note="'worker fetches': 1 if a worker would fetch.",
    )
    return report(args, [section])


async def _measure(lender: Node, borrower: Node, address: str, rng: random.Random, length: int) -> Figures:
    """Time a prompt that is computed, and fetched by each transport."""
    prompt = prompt_of(rng, length + 1)  # the last token is always computed
    source = PrefixSource(address, lender.incarnation, length // BLOCK_SIZE)
    await lender.ask(prompt)
    computed = await borrower.ask(prompt)
    fetched, would = [], []
    for mode in MODES:
        borrower.forget()
        would.append(borrower.would_fetch(mode, source))
        fetched.append(await borrower.ask(prompt, source, mode))
    borrower.forget()
    return figures_of(computed, fetched, would, length)
