"""Tiers that cannot be used are refused when a worker starts, with the flag and what would be accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog.testing
import torch

from engine.kv.kv_pool import BlockLayout, KVPool
from engine.kv.swap_space import default_slots
from kvtransfer.tiers.copies import TierCopies
from scheduling.memory.tiers import Tier
from worker.handoff import staging
from worker.handoff.staging import staging_bytes
from worker.startup import tiers as tiers_module
from worker.startup.tiers import TiersOpener

MIB = 1024**2
MAX_CONTEXT = 160
LARGE = KVPool(BlockLayout(2, 16, 64, 1024, torch.float32), 1)
"""A block takes 16 MiB."""
SMALL = KVPool(BlockLayout(2, 16, 4, 64, torch.float32), 8)
"""Blocks of 64 KiB."""


def opener(host_mb: int = 0, path: Path | None = None, disk_mb: int = 1, left_mb: int = 100) -> TiersOpener:
    return TiersOpener(host_mb, path, disk_mb, lambda: left_mb * MIB)


def taken_mb(pool: KVPool, max_context: int = MAX_CONTEXT) -> float:
    """Return the host memory that the rest of a worker on a GPU takes."""
    return (default_slots(pool.tensor) * pool.block_bytes + staging_bytes(pool, max_context)) / MIB


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
        tiers.open(LARGE, "model", MAX_CONTEXT)


@pytest.mark.parametrize("has_disk", [False, True])
def test_host_memory_for_less_than_a_block_is_refused(tmp_path: Path, has_disk: bool) -> None:
    tiers = opener(15, tmp_path if has_disk else None, disk_mb=100)
    with pytest.raises(
        ValueError,
        match="--kv-host-memory-mb is 15; accepted: 0, or from 16, since a block takes 16777216 bytes",
    ):
        tiers.open(LARGE, "model", MAX_CONTEXT)


def test_more_host_memory_than_is_left_is_refused() -> None:
    tiers = opener(85, left_mb=100)
    with pytest.raises(
        ValueError,
        match="--kv-host-memory-mb is 85, but weights and KV leave 84 MiB of memory; accepted: 0 to 84",
    ):
        tiers.open(LARGE, "model", MAX_CONTEXT)


def test_swapping_and_handoffs_leave_less_host_memory() -> None:
    """The pool itself takes none."""
    pool = KVPool(SMALL.layout, 512, torch.device("meta"))
    left_mb = math.floor(100 - taken_mb(pool))
    assert 0 < left_mb < 100 - 512 * pool.block_bytes / MIB / 2
    with pytest.raises(ValueError, match=f"leave {left_mb} MiB of memory; accepted: 0 to {left_mb}"):
        opener(left_mb + 1).open(pool, "model", MAX_CONTEXT)
    assert opener(left_mb).open(pool, "model", MAX_CONTEXT).present == (Tier.HOST,)


def test_a_long_sequence_to_hand_over_leaves_less_host_memory() -> None:
    pool = KVPool(SMALL.layout, 10**6, torch.device("meta"))
    long = 3 * staging.SEND_BYTES // pool.block_bytes * pool.layout.block_size
    enough_mb = math.ceil(taken_mb(pool, long)) + 5
    with pytest.raises(ValueError, match=r"accepted: 0 to \d$"):
        opener(10, left_mb=enough_mb).open(pool, "model", long)
    assert opener(5, left_mb=enough_mb).open(pool, "model", long).present == (Tier.HOST,)


@pytest.mark.parametrize("host_mb", [0, 5])
def test_what_waits_for_the_disk_of_a_gpu_takes_host_memory(tmp_path: Path, host_mb: int) -> None:
    """Page-locked, at the start; of a pool in host memory it is hardly noticed."""
    pool = KVPool(SMALL.layout, 512, torch.device("meta"))
    staged_mb = 512 * pool.block_bytes // MIB
    enough_mb = math.ceil(taken_mb(pool)) + staged_mb + host_mb
    chosen = "--kv-host-memory-mb is 5" if host_mb else f"--kv-disk is '{tmp_path}'"
    left_mb, accepted = staged_mb + host_mb - 1, f"0 to {host_mb - 1}" if host_mb else "no disk"
    with pytest.raises(
        ValueError,
        match=f"{chosen}, but handoffs and preempted sequences leave {left_mb} MiB of memory, "
        f"and blocks on their way to the disk take {staged_mb}; accepted: {accepted}",
    ):
        opener(host_mb, tmp_path, left_mb=enough_mb - 1).open(pool, "model", MAX_CONTEXT)
    made = opener(host_mb, tmp_path, left_mb=enough_mb).open(pool, "model", MAX_CONTEXT)
    assert Tier.DISK in made.present


def test_a_whole_step_leaves_a_gpu_for_the_disk(tmp_path: Path) -> None:
    """An 8B model's blocks: the disk has written none by the time that the last one leaves."""
    pool = KVPool(BlockLayout(32, 16, 8, 128, torch.bfloat16), 10**5, torch.device("meta"))
    tiers = opener(0, tmp_path, 4096, left_mb=10**6).open(pool, "model", MAX_CONTEXT)
    assert tiers._memory.num_free >= 8192 // 16


def test_a_worker_on_a_gpu_says_that_its_tiers_are_untried() -> None:
    for device, expected in ((torch.device("meta"), 1), (torch.device("cpu"), 0)):
        pool = KVPool(SMALL.layout, 8, device)
        with structlog.testing.capture_logs() as logs:
            opener(1).open(pool, "model", MAX_CONTEXT)
        warnings = [entry for entry in logs if entry["log_level"] == "warning"]
        assert [entry["event"] for entry in warnings] == ["kv_tiers_untried"] * expected


@pytest.mark.parametrize(
    ("host_mb", "chosen", "accepted"),
    [(5, "--kv-host-memory-mb is 5", "less"), (0, "--kv-disk is", "no disk")],
)
def test_memory_that_cannot_be_page_locked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host_mb: int, chosen: str, accepted: str
) -> None:
    def refuse(pool: KVPool) -> Callable[[int], TierCopies]:
        def lock(num_slots: int) -> TierCopies:
            raise RuntimeError("CUDA error: out of memory")

        return lock

    monkeypatch.setattr(tiers_module, "copies_for", refuse)
    reason = r"for which CUDA has no memory \(CUDA error: out of memory\)"
    with pytest.raises(ValueError, match=f"{chosen}.*, {reason}; accepted: {accepted}"):
        opener(host_mb, tmp_path).open(SMALL, "model", MAX_CONTEXT)


def test_the_tiers_are_those_that_were_asked_for(tmp_path: Path) -> None:
    assert opener(1).open(SMALL, "model", MAX_CONTEXT).present == (Tier.HOST,)
    assert opener(0, tmp_path / "a").open(SMALL, "model", MAX_CONTEXT).present == (Tier.DISK,)
    assert opener(1, tmp_path / "b").open(SMALL, "model", MAX_CONTEXT).present == (Tier.HOST, Tier.DISK)
