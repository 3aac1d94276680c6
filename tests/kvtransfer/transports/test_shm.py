"""Only the right process of the same user may map a pool, and nothing is left in the file system."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.kv.kv_pool import BlockLayout, KVPool
from kvtransfer.errors import LayoutMismatchError, TransportUnavailableError
from kvtransfer.receiver_handoff import BlockCopy
from kvtransfer.transports import shm
from kvtransfer.transports.shm import ShmReader, ShmServer
from scheduling.request import Fence
from tests.kvtransfer.blocks import content, fill_block
from tests.patience import PATIENCE_S

FENCE = Fence("t", "r", 0, 0, 0, "source", "target")


def pool_of(num_blocks: int = 4, layers: int = 1) -> KVPool:
    return KVPool(BlockLayout(layers, 4, 1, 8, torch.float32), num_blocks)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ShmServer]:
    pool = pool_of()
    for block in range(4):
        fill_block(pool, block)
    started = ShmServer(pool, "source", tmp_path)
    await started.start()
    yield started
    await started.close()


async def connect(path: Path, executor: ThreadPoolExecutor, **options: object) -> ShmReader:
    lost = options.get("lost", [])
    assert isinstance(lost, list)
    pool = options.get("pool", pool_of())
    assert isinstance(pool, KVPool)
    incarnation = str(options.get("incarnation", "source"))
    return await shm.connect(pool, str(path), incarnation, executor, lambda: lost.append("lost"))


async def test_blocks_are_copied_to_where_they_are_wanted(
    server: ShmServer, executor: ThreadPoolExecutor
) -> None:
    pool = pool_of(num_blocks=8)
    reader = await connect(server.path, executor, pool=pool)
    await reader.read(FENCE, [BlockCopy(0, 3, 7, 0), BlockCopy(1, 0, 2, 0)])
    assert bytes(pool.block_bytes_view(7)) == content(3, pool.block_bytes)
    assert bytes(pool.block_bytes_view(2)) == content(0, pool.block_bytes)
    assert bytes(pool.block_bytes_view(0)) == bytes(pool.block_bytes), "a bystander was written to"
    with pytest.raises(LayoutMismatchError, match="sender_block is 4"):
        await reader.read(FENCE, [BlockCopy(0, 4, 0, 0)])
    await reader.close()


async def test_another_users_socket_is_not_mapped(
    server: ShmServer, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever put it there. Being another user oneself is what a test can be without privileges."""
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(TransportUnavailableError, match=f"is user {user}'s, not {user + 1}'s"):
        await connect(server.path, executor)


async def test_the_end_of_the_sender_is_noticed(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    lost: list[str] = []
    server = ShmServer(pool_of(), "source", tmp_path)
    await server.start()
    reader = await connect(server.path, executor, lost=lost)
    await server.close()
    async with asyncio.timeout(PATIENCE_S):
        while not lost:
            await asyncio.sleep(0)
    await reader.close()


async def test_another_process_at_the_same_address_is_not_trusted(
    server: ShmServer, executor: ThreadPoolExecutor
) -> None:
    with pytest.raises(TransportUnavailableError, match="belongs to process source, not predecessor"):
        await connect(server.path, executor, incarnation="predecessor")


async def test_blocks_of_another_size_are_a_mismatch(server: ShmServer, executor: ThreadPoolExecutor) -> None:
    with pytest.raises(LayoutMismatchError, match="block_bytes"):
        await connect(server.path, executor, pool=pool_of(layers=2))


async def test_nobody_there_is_no_way_through(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    with pytest.raises(TransportUnavailableError, match="No such file"):
        await connect(tmp_path / "nobody.sock", executor)


@pytest.mark.parametrize(
    ("seals", "announced", "sentence"),
    [(False, 4, "may shrink"), (True, 400, "bytes; .* were announced")],
)
async def test_memory_that_could_vanish_under_our_feet_is_not_mapped(
    seals: bool, announced: int, sentence: str, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    """Reading past a file's end kills the process that reads."""
    pool = pool_of()
    fd = pool.fd
    assert fd is not None
    if not seals:
        fd = os.memfd_create("unsealed")
        os.ftruncate(fd, pool.num_blocks * pool.block_bytes)
    hello = {"incarnation": "source", "num_blocks": announced, "block_bytes": pool.block_bytes}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        connecting = asyncio.create_task(connect(tmp_path / "s", executor))
        connection, _ = await asyncio.to_thread(listener.accept)
        with connection:
            socket.send_fds(connection, [json.dumps(hello).encode() + b"\n"], [fd])
            with pytest.raises(TransportUnavailableError, match=sentence):
                await connecting
    os.close(fd)


async def test_a_receiver_cannot_write_to_the_senders_pool(
    server: ShmServer, executor: ThreadPoolExecutor
) -> None:
    reader = await connect(server.path, executor)
    assert reader._blocks is not None
    with pytest.raises(ValueError, match="read-only"):
        reader._blocks[0, 0] = 1
    await reader.close()


class KeepingExecutor(ThreadPoolExecutor):
    """Keeps the work it has done, as a thread does that has not yet come back from setting its result."""

    def __init__(self) -> None:
        super().__init__(1)
        self.kept: list[object] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.kept.append(fn)
        return super().submit(fn, *args, **kwargs)


def num_mappings() -> int:
    """Mappings of a pool in this process that may be read only."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum("r--s" in line and "memfd:" in line for line in lines)


async def test_a_reader_closes_while_a_thread_still_holds_the_last_read(server: ShmServer) -> None:
    before = num_mappings()
    with KeepingExecutor() as executor:
        reader = await connect(server.path, executor)
        await reader.read(FENCE, [BlockCopy(0, 3, 1, 0)])
        await reader.close()
        assert num_mappings() == before + 1
        executor.kept.clear()
    assert num_mappings() == before, "the sender's memory stays mapped"


async def test_only_the_same_user_can_connect_and_nothing_is_left_behind(tmp_path: Path) -> None:
    server = ShmServer(pool_of(), "source", tmp_path)
    await server.start()
    assert server.path.stat().st_mode & 0o777 == 0o600
    await server.close()
    assert list(tmp_path.iterdir()) == []


async def test_sockets_of_the_dead_are_removed_and_those_of_the_living_stay(
    server: ShmServer, tmp_path: Path
) -> None:
    dead = tmp_path / "baton-kv-dead.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dead))
    stranger = tmp_path / "other.sock"
    stranger.touch()
    shm.remove_stale_sockets(tmp_path)
    assert not dead.exists()
    assert stranger.exists()
    assert server.path.exists()


@pytest.mark.parametrize("moment", ["listen", "bind"])
async def test_a_server_that_starts_beside_another_keeps_its_socket(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one removes stale sockets just before this one listens."""
    plain = getattr(socket.socket, moment)

    def beside_another(own: socket.socket, *args: object) -> None:
        shm.remove_stale_sockets(tmp_path)
        plain(own, *args)
        shm.remove_stale_sockets(tmp_path)

    monkeypatch.setattr(socket.socket, moment, beside_another, raising=False)
    server = ShmServer(pool_of(), "source", tmp_path)
    await server.start()
    assert [path.name for path in tmp_path.iterdir()] == [server.path.name]
    await server.close()


def test_a_path_too_long_for_a_socket_is_refused_by_the_flags_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--shm-dir is"):
        ShmServer(pool_of(), "source", tmp_path / ("x" * 120))
