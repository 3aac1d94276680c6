"""Drives a step loop with other tiers: what leaves its pool is kept, and reads end when a test says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.core.commands import BlocksRead, Command, Decode
from engine.core.report import Reading
from kvtransfer.tiers.disk import DiskSettings
from kvtransfer.tiers.folder import Folder
from kvtransfer.tiers.tiers import Tiers
from tests.engine.fake_runner import FakeRunner
from tests.engine.loop_driver import VOCAB, Driver, spec
from tests.kvtransfer.tiers.driving import FILE_BYTES, MemoryPool, read_to_end
from tests.patience import PATIENCE_S

PROMPT = list(range(22))


class TierDriver(Driver):
    """A driver with a disk of `most` blocks in a folder, if there is one, and `most_in_host` in host memory.

    Blocks of other processes' making have the same names.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        most: int = 1000,
        most_in_host: int = 0,
        **more: Any,
    ) -> None:
        runner = FakeRunner(num_blocks, block_size, VOCAB)
        pool = MemoryPool(runner.pool.numpy().data.cast("B"), runner.pool[0].nbytes)
        disk = None if folder is None else DiskSettings(Folder(folder), most * FILE_BYTES, "model")
        self.tiers = Tiers(pool, most_in_host * pool.block_bytes, disk)
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
        """Wait until all that leaves host memory is on the disk."""
        assert self.tiers.wait_until_written(PATIENCE_S)

    def close(self) -> None:
        """End as a worker does."""
        self.tiers.close(self.blocks.cached(), PATIENCE_S)


def evicting(folder: Path | None, *, num_blocks: int = 12, **more: Any) -> TierDriver:
    """Return a driver whose pool has lost the blocks of `PROMPT` to other tiers."""
    driver = TierDriver(folder, num_blocks=num_blocks, **more)
    driver.finish(Decode(spec(1, PROMPT, 2)))
    driver.finish(Decode(spec(2, [50 + n % 7 for n in range(4 * num_blocks - 8)], 6)))
    driver.settle()
    driver.reports.clear()
    return driver
