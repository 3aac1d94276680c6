"""Blocks on a disk: kept within the budget, found again, verified; a disk that fails costs nothing else."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtransfer.pools.host_blocks import checksum
from kvtransfer.tiers.block_files import HEADER_BYTES, BlockFiles
from kvtransfer.tiers.disk import AT_ONCE
from kvtransfer.tiers.folder import KEY_BYTES, Folder, FolderRefusedError
from scheduling.memory.tiers import Tier
from tests.kvtransfer.tiers.driving import (
    BLOCK_BYTES,
    FILE_BYTES,
    Driven,
    content_of,
    memory_pool,
    name_of,
    opened,
    read_to_end,
)
from tests.patience import PATIENCE_S


def test_a_block_that_left_the_pool_comes_back(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        tier.put(1)
        tier.put(2)
        assert tier.get([2, 1]) == 2
        assert tier.counts["written"] == tier.counts["read"] == 2
        assert tier.counts["read bytes"] == tier.counts["written bytes"] == 2 * BLOCK_BYTES


@settings(max_examples=40, deadline=None)
@given(
    most=st.integers(1, 4),
    actions=st.lists(st.tuples(st.sampled_from(["put", "get", "forget", "reopen"]), st.integers(0, 6))),
)
def test_the_budget_holds_and_the_least_recently_used_go(most: int, actions: list[tuple[str, int]]) -> None:
    expected: OrderedDict[int, None] = OrderedDict()
    folder = Path(tempfile.mkdtemp())
    tier = Driven(folder, most=most).open()
    try:
        for action, number in actions:
            match action:
                case "put":
                    tier.put(number)
                    while number not in expected and len(expected) >= most:
                        expected.popitem(last=False)
                    expected[number] = None
                    expected.move_to_end(number)
                case "get":
                    assert tier.get([number]) == (number in expected)
                    if number in expected:
                        expected.move_to_end(number)
                case "forget":
                    tier.forget(name_of(number))
                    expected.pop(number, None)
                case "reopen":
                    tier.close([], PATIENCE_S)
                    found = {number for number in range(7) if tier.path(number).exists()}
                    assert found == set(expected)
                    tier = Driven(folder, most=most).open()
                    # What left the pool again was on the disk already, and its file is as old as before.
                    expected = OrderedDict.fromkeys(sorted(expected, key=_age(tier)))
            assert [number for number in range(7) if tier.has(number)] == sorted(expected)
            assert len(expected) <= most
            assert tier.told == {name_of(number) for number in expected}
    finally:
        tier.close([], PATIENCE_S)
        shutil.rmtree(folder)


def _age(tier: Driven) -> Callable[[int], tuple[int, bytes]]:
    return lambda number: (tier.path(number).stat().st_mtime_ns, name_of(number))


@pytest.mark.parametrize("place", range(HEADER_BYTES + BLOCK_BYTES))
def test_a_flipped_byte_anywhere_is_refused_and_deleted(tmp_path: Path, place: int) -> None:
    with opened(tmp_path) as tier:
        tier.put(1)
        damaged = bytearray(tier.path(1).read_bytes())
        damaged[place] ^= 0x40
        tier.path(1).write_bytes(damaged)
        assert tier.get([1]) == 0
        assert tier.counts["refused"] == 1
        assert not tier.has(1)
        tier.put(1)
        assert tier.get([1]) == 1


@pytest.mark.parametrize(
    "size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + BLOCK_BYTES - 1, 10_000]
)
@pytest.mark.parametrize("reopens", [False, True])
def test_a_file_of_another_size_is_refused_and_deleted(tmp_path: Path, size: int, reopens: bool) -> None:
    tier = Driven(tmp_path).open()
    tier.put(1)
    os.truncate(tier.path(1), size)
    if reopens:
        tier.close([], PATIENCE_S)
        tier = Driven(tmp_path).open()
        assert not tier.path(1).exists()
    assert tier.get([1]) == 0
    assert tier.counts["refused"] == 1
    tier.close([], PATIENCE_S)
    assert not tier.path(1).exists()


def test_a_block_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        tier.put(1)
        tier.put(2)
        shutil.copyfile(tier.path(1), tier.path(2))
        assert tier.get([2]) == 0
        assert tier.counts["refused"] == 1


def test_a_crash_before_the_rename_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        tier.put(1)
    unfinished = tier.path(2).with_suffix(".part")
    unfinished.parent.mkdir(exist_ok=True)
    unfinished.write_bytes(tier.path(1).read_bytes()[:50])
    with opened(tmp_path) as again:
        assert not unfinished.exists()
        assert (again.has(1), again.has(2)) == (True, False)
        assert again.counts["refused"] == 0


def test_files_of_another_model_are_never_read(tmp_path: Path) -> None:
    with opened(tmp_path, identity="model") as tier:
        tier.put(1)
    with opened(tmp_path, identity="another") as other:
        assert not other.has(1)
    assert not tier.path(1).exists()


def test_a_foreign_file_in_the_right_place_is_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "a")
    files = BlockFiles(folder.path, folder.key, "another", BLOCK_BYTES)
    files.scan()
    files.write(name_of(1), memoryview(content_of(1)), checksum(content_of(1)))
    with opened(tmp_path / "b") as tier:
        tier.put(1)
        shutil.copyfile(files.path(name_of(1)), tier.path(1))
        assert tier.get([1]) == 0
        assert tier.counts["refused"] == 1


def test_a_file_that_another_key_sealed_is_refused(tmp_path: Path) -> None:
    """Whoever can write files knows all that a header needs but the key."""
    with opened(tmp_path / "kv") as tier:
        tier.put(1)
        forger = BlockFiles(tmp_path / "kv", secrets.token_bytes(KEY_BYTES), "model", BLOCK_BYTES)
        forged = bytes(BLOCK_BYTES)
        forger.write(name_of(1), memoryview(forged), checksum(forged))
        assert tier.get([1]) == 0
        assert tier.counts["refused"] == 1


def test_a_file_with_another_block_and_its_checksum_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        tier.put(1)
        forged = bytearray(tier.path(1).read_bytes())
        forged[HEADER_BYTES:] = bytes(BLOCK_BYTES)
        forged[48:56] = checksum(bytes(BLOCK_BYTES)).to_bytes(8, "little")
        tier.path(1).write_bytes(forged)
        assert tier.get([1]) == 0
        assert tier.counts["refused"] == 1


def test_the_key_outlives_the_process_and_is_the_folders_own(tmp_path: Path) -> None:
    keys = [Folder(path).key for path in (tmp_path / "a", tmp_path / "a", tmp_path / "b")]
    assert keys[0] == keys[1] != keys[2]
    assert len(keys[0]) == KEY_BYTES
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["key", "lock"]


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    for mode in (0o777, 0o1777, 0o770, 0o702):
        path = tmp_path / f"{mode:o}"
        path.mkdir()
        path.chmod(mode)
        with pytest.raises(FolderRefusedError, match=f"whose mode {mode:04o} lets others write to it"):
            Folder(path)
        assert not list(path.iterdir())


def test_a_folder_that_others_can_replace_is_refused(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    for path in (above / "kv", above / "between" / "kv"):
        with pytest.raises(FolderRefusedError, match="above', whose mode 0777 lets others replace it"):
            Folder(path)
    above.chmod(0o1777)
    Folder(above / "kv")


def test_a_link_to_the_folder_is_followed_once(tmp_path: Path) -> None:
    """The link may lie where others could change it."""
    link, place = tmp_path / "link", tmp_path / "kv"
    place.mkdir(mode=0o700)
    link.symlink_to(place)
    assert Folder(link).path == place.resolve()


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen from another user, since only root may give a folder away."""
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(FolderRefusedError, match=f"which belongs to user {user}"):
        Folder(tmp_path)


def _to_a_link(key: Path) -> None:
    key.rename(key.with_name("moved"))
    key.symlink_to("moved")


def _to_a_fifo(key: Path) -> None:
    key.unlink()
    os.mkfifo(key, 0o600)


def _to_less(key: Path) -> None:
    key.write_bytes(b"short")


@pytest.mark.parametrize("spoil", [_to_a_link, _to_a_fifo, _to_less, lambda key: key.chmod(0o640)])
def test_a_key_that_others_could_know_is_refused(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    Folder(tmp_path).release()
    spoil(tmp_path / "key")
    with pytest.raises(FolderRefusedError, match=r"whose file 'key' is .*; delete it"):
        Folder(tmp_path)


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    with opened(tmp_path / "kv") as tier:
        tier.put(1)
        tier.path(2).parent.mkdir(exist_ok=True)
        tier.path(2).with_suffix(".part").symlink_to(outside / "file")
        tier.put(2)
        assert tier.counts["dropped"] == 1
        tier.put(2)
        assert tier.get([2]) == 1
        block, identity = tier.path(1), tier.path(1).parents[1]
    block.unlink()
    block.symlink_to(outside / "file")
    (identity / "zz").symlink_to(outside)
    identity.with_name("0" * 32).symlink_to(outside)
    with opened(tmp_path / "kv") as again:
        assert (again.has(1), again.has(2)) == (False, True)
    assert not any(path.is_symlink() for path in (tmp_path / "kv").rglob("*"))
    shutil.rmtree(identity)
    identity.symlink_to(outside)
    with opened(tmp_path / "kv") as again:
        again.put(1)
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("file", "mine")]


def test_what_else_is_in_the_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "file").write_text("mine")
    with opened(tmp_path):
        pass
    assert (tmp_path / "notes" / "file").read_text() == "mine"


def test_only_the_user_may_read_what_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path / "kv") as tier:
        tier.put(1)
        for path in (tmp_path / "kv", *(tmp_path / "kv").rglob("*")):
            assert not path.stat().st_mode & 0o077, path


def test_a_full_disk_drops_blocks_and_keeps_those_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as tier:
        tier.put(1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", _refuse)
            tier.put(2)
        assert (tier.has(1), tier.has(2)) == (True, False)
        assert tier.counts["dropped"] == tier.counts["failed"] == 1
        assert [path.suffix for path in tmp_path.rglob("*.*")] == [".kv"]
        tier.put(2)
        assert tier.get([1, 2]) == 2


def _refuse(fd: int, data: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_hangs_makes_nobody_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks that fit into the staging memory wait, and others are dropped."""
    go_on, real = threading.Event(), os.write

    def hang(fd: int, data: memoryview) -> int:
        assert go_on.wait(PATIENCE_S)
        return real(fd, data)

    with opened(tmp_path) as tier:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", hang)
            for number in range(12):
                tier.pool.block_bytes_view(0)[:] = content_of(number)
                tier.keep([0], [name_of(number)])
            assert tier.counts["dropped"] == 12 - tier.pool.num_blocks
            assert tier.has(0), "a block that waits to be written is in memory"
            assert tier.get([0]) == 1
            go_on.set()
            assert tier.wait_until_written(PATIENCE_S)
        assert tier.counts["written"] == tier.pool.num_blocks


def test_a_read_that_is_stopped_writes_nothing_more(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        tier.put(1)
        read = tier.read([3], [name_of(1)], lambda: None)
        num_read = read.stop()
        before = bytes(tier.pool.block_bytes_view(3))
        assert read_to_end(tier, [4], [name_of(1)]) == 1, "the one before is over"
        assert bytes(tier.pool.block_bytes_view(3)) == before == (content_of(1) if num_read else bytes(96))
        assert not read.put([0])


def test_a_read_ends_at_the_first_block_that_is_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        for number in (1, 2, 3):
            tier.put(number)
        tier.path(2).unlink()
        assert tier.get([1, 2, 3]) == 1
        assert tier.num_leading([1, 2, 3]) == 1


def test_after_a_slow_read_the_next_is_expected_to_be_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang(files: BlockFiles, block_hash: bytes, data: memoryview) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with opened(tmp_path) as tier:
        tier.put(1)
        monkeypatch.setattr(BlockFiles, "read", hang)
        at_first = tier.expected_s(1)
        read = tier.read([0], [name_of(1)], lambda: None)
        assert begun.wait(PATIENCE_S)
        assert tier.expected_s(1) > at_first, "it is behind another one"
        deadline_s = time.monotonic() + PATIENCE_S
        while tier.expected_s(1) < 10 * at_first:
            assert time.monotonic() < deadline_s, "a disk that hangs is expected to go on with that"
        read.stop()
        go_on.set()
        assert read_to_end(tier, [0], [name_of(2)]) == 0, "the one before is over"
        assert tier.state(Tier.DISK).block_s > BLOCK_BYTES / 1e9
        assert tier.counts["failed"] == 2


def test_forgotten_blocks_are_not_found_again(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        tier.put(1)
        tier.forget(name_of(1))
        assert not tier.has(1)
        tier.keep([0], [name_of(2)])
        tier.forget(name_of(2))
        assert not tier.has(2)
    with opened(tmp_path) as again:
        assert not again.has(1)
        assert not again.has(2)


def test_what_is_found_at_the_start_is_told_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name_of(number) for number in range(2 * AT_ONCE + 5)]
    monkeypatch.setattr(BlockFiles, "scan", lambda _: (names, 0))
    with opened(tmp_path, most=2 * AT_ONCE) as tier:
        assert tier.told == set(names[5:]), "the oldest ones are beyond the budget"
        assert tier.state(Tier.DISK).num_blocks == 2 * AT_ONCE


def test_the_time_of_a_read_is_that_of_its_blocks_behind_the_wait(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        for number in range(10):
            tier.put(number)
        state = tier.state(Tier.DISK)
        assert tier.expected_s(*range(10)) == pytest.approx(state.wait_s + 10 * state.block_s)
        assert state.block_s > 0


def test_cached_blocks_are_written_at_the_end(tmp_path: Path) -> None:
    """The budget is for the most recently used ones, which are the last to go after a restart."""
    pool = memory_pool(6)
    for number in range(6):
        pool.block_bytes_view(number)[:] = content_of(number)
    tier = Driven(tmp_path, most=4, pool=pool).open()
    tier.close([(number, name_of(number)) for number in range(6)], PATIENCE_S)
    with opened(tmp_path, most=4) as again:
        assert [number for number in range(6) if again.has(number)] == [0, 1, 2, 3]
        again.put(9)
        assert not again.has(3)


def test_a_second_user_of_the_folder_waits_for_the_first(tmp_path: Path) -> None:
    first = Driven(tmp_path).open()
    second = Driven(tmp_path)
    second.start()
    first.put(1)
    second.keep([0], [name_of(2)])
    assert not second.wait_until_open(0)
    first.close([], PATIENCE_S)
    assert second.wait_until_open(PATIENCE_S)
    assert second.get([1]) == 1
    second.close([], PATIENCE_S)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        Folder(tmp_path / "file" / "kv")
    with pytest.raises(FileExistsError):
        Folder(tmp_path / "file")


def test_a_budget_below_one_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"a block takes {FILE_BYTES} bytes"):
        Driven(tmp_path, most=0)


def test_nothing_is_read_into_the_pool_that_was_not_verified(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        for number in (1, 2):
            tier.put(number)
        damaged = bytearray(tier.path(2).read_bytes())
        damaged[-1] ^= 1
        tier.path(2).write_bytes(damaged)
        tier.pool.block_bytes_view(5)[:] = bytes(BLOCK_BYTES)
        assert read_to_end(tier, [4, 5], [name_of(1), name_of(2)]) == 1
        assert bytes(tier.pool.block_bytes_view(5)) == bytes(BLOCK_BYTES)
