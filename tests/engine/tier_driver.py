"""Drives a step loop with other tiers: what leaves its pool is kept, and reads end when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from engine.core.commands import BlocksRead, Command, Decode
from engine.core.report import Mark, Reading
from engine.kv.kv_pool import BlockLayout, KVPool
from kvtransfer.tiers.disk import DiskSettings
from kvtransfer.tiers.folder import Folder
from kvtransfer.tiers.tiers import Tiers
from tests.engine.fake_runner import FakeRunner
from tests.engine.loop_driver import VOCAB, Driver, spec
from tests.kvtransfer.tiers.driving import FILE_BYTES, read_to_end
from tests.patience import PATIENCE_S
from worker.handoff.tier_slots import TierSlots

PROMPT = list(range(22))
IS_LATE = False
"""Whether copies out of the pool end when a driver settles, unless it is told."""


class LateSlots(TierSlots):
    """The slots of a pool on a device, whose copies out are over once `gate` is open."""

    def __init__(self, gate: threading.Event, pool: KVPool, num_slots: int) -> None:
        super().__init__(pool, num_slots)
        self._gate = gate

    def _sums(self, slots: Sequence[int], ended: Mark) -> Iterator[int]:
        self._gate.wait()  # for as long as the driver is not settled, which some never are at the end
        yield from super()._sums(slots, ended)


class TierDriver(Driver):
    """A driver with a disk of `most` blocks in a folder, if there is one, and `most_in_host` in host memory.

    Blocks of other processes' making have the same names. With `is_late`, the pool is taken to be on a
    device: copies out of it end when the driver settles.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        most: int = 1000,
        most_in_host: int = 0,
        is_late: bool | None = None,
        **more: Any,
    ) -> None:
        runner = FakeRunner(num_blocks, block_size, VOCAB)
        pool = KVPool(BlockLayout(1, block_size, 1, 1, torch.int64), num_blocks)
        pool.tensor.fill_(-1)
        runner.pool = pool.tensor.view(runner.pool.shape)
        disk = None if folder is None else DiskSettings(Folder(folder), most * FILE_BYTES, "model")
        self._landing = threading.Event()
        late = partial(LateSlots, self._landing, pool) if (IS_LATE if is_late is None else is_late) else None
        self.tiers = Tiers(pool, most_in_host * pool.block_bytes, disk, late)
        self.tiers.start()
        assert self.tiers.wait_until_open(PATIENCE_S)
        super().__init__(
            num_blocks=num_blocks, block_size=block_size, runner=runner, tiers=self.tiers, **more
        )
        self._num_ended = 0

    def readings(self) -> list[Reading]:
        """Return the reads that have not ended, in order."""
        return [reading for report in self.reports for reading in report.reads][self._num_ended :]

    def end_read(self, most: int = 1000) -> Command:
        """Read what the first of the waiting sequences asked for, or only the first blocks of it."""
        self.settle()  # a reader waits for blocks that have not landed
        reading = self.readings()[0]
        self._num_ended += 1
        num_read = read_to_end(self.tiers, reading.blocks[:most], reading.hashes[:most])
        return BlocksRead(reading.handle, num_read)

    def finish_reads(self, *commands: Command) -> None:
        """Go on until nothing is left to do; all reads end."""
        self.finish(*commands)
        while self.readings():
            self.finish(self.end_read())

    def settle(self) -> None:
        """Wait until all that left the pool has landed, and all that left host memory is on the disk."""
        self._landing.set()
        assert self.tiers.wait_until_written(PATIENCE_S)
        self._landing.clear()

    def close(self) -> None:
        """End as a worker does."""
        self._landing.set()
        self.tiers.close(self.blocks.cached(), PATIENCE_S)


def evicting(folder: Path | None, *, num_blocks: int = 12, **more: Any) -> TierDriver:
    """Return a driver whose pool has lost the blocks of `PROMPT` to other tiers."""
    driver = TierDriver(folder, num_blocks=num_blocks, **more)
    driver.finish(Decode(spec(1, PROMPT, 2)))
    driver.finish(Decode(spec(2, [50 + n % 7 for n in range(4 * num_blocks - 8)], 6)))
    driver.settle()
    driver.reports.clear()
    return driver
