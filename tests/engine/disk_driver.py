"""Drives a step loop whose pool has a disk: what leaves it is written, and reads end when a test says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.core.commands import BlocksRead, Command
from engine.core.report import Reading
from kvtransfer.disk.tier import DiskTier, Folder
from tests.engine.fake_runner import FakeRunner
from tests.engine.loop_driver import VOCAB, Driver
from tests.kvtransfer.disk.disks import FILE_BYTES, MemoryPool, read_to_end
from tests.patience import PATIENCE_S


class DiskDriver(Driver):
    """A driver with a tier in a folder. Blocks of other processes' making have the same names."""

    def __init__(
        self, folder: Path, *, num_blocks: int = 64, block_size: int = 4, most: int = 1000, **more: Any
    ) -> None:
        runner = FakeRunner(num_blocks, block_size, VOCAB)
        pool = MemoryPool(runner.pool.numpy().data.cast("B"), runner.pool[0].nbytes)
        self.tier = DiskTier(Folder(folder), most * FILE_BYTES, pool, "model")
        self.tier.start()
        assert self.tier.wait_until_open(PATIENCE_S)
        super().__init__(num_blocks=num_blocks, block_size=block_size, runner=runner, disk=self.tier, **more)
        self._num_ended = 0

    def readings(self) -> list[Reading]:
        """Return the reads that have not ended, in order."""
        return [reading for report in self.reports for reading in report.reads][self._num_ended :]

    def end_read(self, most: int = 1000) -> Command:
        """Read what the first of the waiting sequences asked for, or only the first blocks of it."""
        reading = self.readings()[0]
        self._num_ended += 1
        num_read = read_to_end(self.tier, reading.blocks[:most], reading.hashes[:most])
        return BlocksRead(reading.handle, num_read)

    def finish_reads(self, *commands: Command) -> None:
        """Go on until nothing is left to do; all reads end."""
        self.finish(*commands)
        while self.readings():
            self.finish(self.end_read())

    def settle(self) -> None:
        """Wait until all that left the pool is on the disk."""
        assert self.tier.wait_until_written(PATIENCE_S)

    def close(self) -> None:
        """End as a worker does."""
        self.tier.close(self.blocks.cached(), PATIENCE_S)
