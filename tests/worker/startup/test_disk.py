"""A disk that cannot be used is refused when a worker starts, with the flag and what would be accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.kv.kv_pool import BlockLayout, KVPool
from worker.startup.disk import DiskOpener

CPU = torch.device("cpu")


def test_a_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--kv-disk is '/kv' on cuda; accepted: a worker on a CPU"):
        DiskOpener(Path("/kv"), 1, torch.device("cuda"))


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(ValueError, match=rf"--kv-disk is '{path}' \(File exists\); accepted: a folder that"):
        DiskOpener(path, 1, CPU)


def test_a_folder_is_made_where_there_is_none(tmp_path: Path) -> None:
    DiskOpener(tmp_path / "one" / "two", 1, CPU)
    assert (tmp_path / "one" / "two").is_dir()


def test_a_budget_for_less_than_a_block_is_refused(tmp_path: Path) -> None:
    pool = KVPool(BlockLayout(2, 16, 64, 1024, torch.float32), 1)
    opener = DiskOpener(tmp_path, 1, CPU)
    with pytest.raises(
        ValueError, match=r"--kv-disk-mb is 1; accepted: enough for a block \(a block takes 1"
    ):
        opener.open(pool, "model")
    assert opener.tier is None
