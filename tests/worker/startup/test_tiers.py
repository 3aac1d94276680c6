"""Tiers that cannot be used are refused when a worker starts, with the flag and what would be accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.kv.kv_pool import BlockLayout, KVPool
from engine.kv.swap_space import default_slots
from kvtransfer.tiers.copies import TierCopies
from scheduling.memory.tiers import Tier
from worker.handoff.staging import staging_bytes
from worker.startup import tiers as tiers_module
from worker.startup.tiers import TiersOpener

CPU = torch.device("cpu")
MIB = 1024**2
LARGE = KVPool(BlockLayout(2, 16, 64, 1024, torch.float32), 1)
"""A block takes 16 MiB."""
SMALL = KVPool(BlockLayout(2, 16, 4, 64, torch.float32), 8)
"""Blocks of 64 KiB."""


def opener(host_mb: int = 0, path: Path | None = None, disk_mb: int = 1, left_mb: int = 100) -> TiersOpener:
    return TiersOpener(CPU, host_mb, path, disk_mb, lambda: left_mb * MIB)


def test_a_gpu_is_refused(tmp_path: Path) -> None:
    for host_mb, path, chosen in (
        (0, Path("/kv"), "--kv-disk is '/kv'"),
        (5, None, "--kv-host-memory-mb is 5"),
    ):
        with pytest.raises(ValueError, match=f"{chosen} on cuda; accepted: a worker on a CPU"):
            TiersOpener(torch.device("cuda"), host_mb, path, 1, lambda: MIB)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(ValueError, match=rf"--kv-disk is '{path}' \(File exists\); accepted: a folder that"):
        opener(path=path)


def test_a_folder_is_made_where_there_is_none(tmp_path: Path) -> None:
    opener(path=tmp_path / "one" / "two")
    assert (tmp_path / "one" / "two").is_dir()


def test_a_disk_budget_for_less_than_a_block_is_refused(tmp_path: Path) -> None:
    tiers = opener(path=tmp_path)
    with pytest.raises(
        ValueError, match=r"--kv-disk-mb is 1; accepted: enough for a block \(a block takes 1"
    ):
        tiers.open(LARGE, "model")
    assert tiers.tiers is None


@pytest.mark.parametrize("has_disk", [False, True])
def test_host_memory_for_less_than_a_block_is_refused(tmp_path: Path, has_disk: bool) -> None:
    tiers = opener(15, tmp_path if has_disk else None, disk_mb=100)
    with pytest.raises(
        ValueError,
        match="--kv-host-memory-mb is 15; accepted: 0, or from 16, since a block takes 16777216 bytes",
    ):
        tiers.open(LARGE, "model")
    assert tiers.tiers is None


def test_more_host_memory_than_is_left_is_refused() -> None:
    tiers = opener(85, left_mb=100)
    with pytest.raises(
        ValueError,
        match="--kv-host-memory-mb is 85, but weights and KV leave 84 MiB of memory; accepted: 0 to 84",
    ):
        tiers.open(LARGE, "model")


def test_swapping_and_handoffs_leave_less_host_memory() -> None:
    """The pool itself takes none."""
    pool = KVPool(SMALL.layout, 512, torch.device("meta"))
    taken_mb = (default_slots(pool.tensor) * pool.block_bytes + staging_bytes(pool)) / MIB
    left_mb = math.floor(100 - taken_mb)
    assert 0 < left_mb < 100 - 512 * pool.block_bytes / MIB / 2
    with pytest.raises(ValueError, match=f"leave {left_mb} MiB of memory; accepted: 0 to {left_mb}"):
        opener(left_mb + 1).open(pool, "model")
    assert opener(left_mb).open(pool, "model").present == (Tier.HOST,)


def test_memory_that_cannot_be_page_locked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pool: KVPool) -> Callable[[int], TierCopies]:
        def lock(num_slots: int) -> TierCopies:
            raise RuntimeError("CUDA error: out of memory")

        return lock

    monkeypatch.setattr(tiers_module, "copies_for", refuse)
    with pytest.raises(
        ValueError,
        match=r"--kv-host-memory-mb is 5, which CUDA does not page-lock \(CUDA error: out of memory\); "
        "accepted: less",
    ):
        opener(5).open(SMALL, "model")


def test_the_tiers_are_those_that_were_asked_for(tmp_path: Path) -> None:
    assert opener(1).open(SMALL, "model").present == (Tier.HOST,)
    assert opener(0, tmp_path / "a").open(SMALL, "model").present == (Tier.DISK,)
    assert opener(1, tmp_path / "b").open(SMALL, "model").present == (Tier.HOST, Tier.DISK)
