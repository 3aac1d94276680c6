"""Blocks of a process on the same host: its pool's memfd, passed over a unix socket and mapped read-only.

A memfd has no name: a killed process group leaves nothing behind, and no exiting peer unlinks it, as happens
with `multiprocessing.shared_memory` on Python 3.11. The connection stays open while the mapping is used; its
end shows that the sender is gone.

On connecting, the sender writes one line of JSON, {"incarnation", "num_blocks", "block_bytes"}, and passes a
read-only descriptor of the pool with its first byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvtransfer.errors import LayoutMismatchError, TransportUnavailableError
from kvtransfer.pools.pool import BlockPool
from kvtransfer.receiver_handoff import BlockCopy
from kvtransfer.threads import run_to_end
from kvtransfer.transports.transport import check_places
from scheduling.request import Fence

SOCKET_PREFIX = "baton-kv-"
STARTING_PREFIX = ".kv-"
"""The beginning of the name of a socket that does not listen yet; it makes no path longer than allowed."""
MAX_SOCKET_PATH_BYTES = 107
"""The size of sockaddr_un's path without its closing zero."""
PROBE_TIMEOUT_S = 1.0
MAX_HELLO_BYTES = 4096
_CREDENTIALS = "3i"
"""struct ucred: process, user, group."""

Bytes = npt.NDArray[np.uint8]


class ShmServer:
    """The sender's end: passes the pool's memory to processes of the same user."""

    def __init__(self, pool: BlockPool, incarnation: str, directory: Path) -> None:
        if pool.fd is None:
            raise TransportUnavailableError("shm", "this process", "the pool does not live in a memfd")
        self.path = directory / f"{SOCKET_PREFIX}{incarnation}.sock"
        if len(os.fsencode(self.path)) > MAX_SOCKET_PATH_BYTES:
            raise ValueError(f"--shm-dir is {str(directory)!r}; accepted: a path of fewer bytes")
        self._fd = os.open(f"/proc/self/fd/{pool.fd}", os.O_RDONLY | os.O_CLOEXEC)
        hello = {"incarnation": incarnation, "num_blocks": pool.num_blocks, "block_bytes": pool.block_bytes}
        self._hello = json.dumps(hello).encode() + b"\n"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._receivers: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        remove_stale_sockets(self.path.parent)
        self._socket.setblocking(False)
        # A process that starts beside this one removes sockets that nothing listens on: the name comes last.
        starting = self.path.with_name(STARTING_PREFIX + self.path.name.removeprefix(SOCKET_PREFIX))
        self._socket.bind(str(starting))
        starting.chmod(0o600)
        self._socket.listen(128)
        starting.rename(self.path)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()
        receivers = list(self._receivers)
        for task in receivers:
            task.cancel()
        await asyncio.gather(*receivers, return_exceptions=True)
        self.path.unlink(missing_ok=True)
        os.close(self._fd)

    def _accept(self) -> None:
        # Not `sock_accept`: when it is cancelled, a connection that has just come is lost unclosed.
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = self._socket.accept()
            task = asyncio.create_task(self._serve(connection), name="shm-receiver")
            self._receivers.add(task)
            task.add_done_callback(lambda done: self._on_end(done, connection))

    def _on_end(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        connection.close()  # here: a task that is cancelled before it begins closes nothing
        self._receivers.discard(task)

    async def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.setblocking(False)
            _check_same_user(connection)
            # A fresh socket's buffer holds the hello, so this does not block.
            socket.send_fds(connection, [self._hello], [self._fd])
            while await asyncio.get_running_loop().sock_recv(connection, 64):
                pass


def remove_stale_sockets(directory: Path) -> None:
    """Unlink sockets that killed processes left behind: those that nothing listens on.

    The socket is asked, not the process table, which lacks the processes of other containers.
    """
    for path in directory.glob(f"{SOCKET_PREFIX}*.sock"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.settimeout(PROBE_TIMEOUT_S)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)


class ShmReader:
    """The receiver's end: copies from the sender's mapped pool on a thread, a block at a time."""

    transport = "shm"

    def __init__(
        self,
        *,
        pool: BlockPool,
        connection: socket.socket,
        blocks: Bytes,
        executor: Executor,
        on_lost: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._connection = connection
        self._blocks: Bytes | None = blocks
        self._executor = executor
        self._on_lost = on_lost
        asyncio.get_running_loop().add_reader(connection.fileno(), self._on_end)

    async def read(self, fence: Fence, copies: Sequence[BlockCopy]) -> None:
        assert self._blocks is not None, "read after close"
        check_places(copies, len(self._blocks))
        blocks = self._blocks
        await run_to_end(self._executor, lambda stop: _copy(blocks, self._pool, copies, stop))

    async def close(self) -> None:
        """Close the reader; no `read` may be running."""
        asyncio.get_running_loop().remove_reader(self._connection.fileno())
        self._connection.close()
        # The last reference unmaps the memory. The executor may hold it: a thread drops its last piece of
        # work only after its result is set, and unmapping before that would be an error.
        self._blocks = None

    def _on_end(self) -> None:
        # The sender writes nothing after its hello: readable means closed.
        asyncio.get_running_loop().remove_reader(self._connection.fileno())
        self._on_lost()


def _copy(source: Bytes, pool: BlockPool, copies: Sequence[BlockCopy], stop: threading.Event) -> None:
    for copy in copies:
        if stop.is_set():
            return
        # copyto releases the interpreter lock; assigning to the memoryview would hold it.
        target = np.frombuffer(pool.block_bytes_view(copy.target_block), dtype=np.uint8)
        np.copyto(target, source[copy.sender_block])


async def connect(
    pool: BlockPool, path: str, incarnation: str, executor: Executor, on_lost: Callable[[], None]
) -> ShmReader:
    """Map the pool of the process `incarnation` that listens at `path`; `on_lost` is called when it ends.

    Raises TransportUnavailableError if no process, or another one, replies within a second.
    """
    loop = asyncio.get_running_loop()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await loop.sock_connect(connection, path)
            _check_same_user(connection)
            hello, fd = await _receive_hello(connection)
        blocks = _map(pool, path, incarnation, hello, fd)
        return ShmReader(pool=pool, connection=connection, blocks=blocks, executor=executor, on_lost=on_lost)
    except (OSError, TimeoutError, ValueError, KeyError) as error:
        connection.close()
        reason = str(error) or type(error).__name__
        raise TransportUnavailableError("shm", path, reason) from error
    except BaseException:
        connection.close()
        raise


def _check_same_user(connection: socket.socket) -> None:
    """Raise PermissionError unless the other end runs as our user, since the folder may be everybody's."""
    size = struct.calcsize(_CREDENTIALS)
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack(_CREDENTIALS, peer)
    if user != os.getuid():
        raise PermissionError(f"the socket's other end is user {user}'s, not {os.getuid()}'s")


async def _receive_hello(connection: socket.socket) -> tuple[bytes, int]:
    """Receive the hello line, and the descriptor that comes with its first byte."""
    await _readable(connection)
    hello, fds, _, _ = socket.recv_fds(connection, MAX_HELLO_BYTES, 1)
    if len(fds) != 1:
        raise ValueError(f"the hello brought {len(fds)} descriptors; accepted: 1")
    try:
        while not hello.endswith(b"\n") and len(hello) < MAX_HELLO_BYTES:
            more = await asyncio.get_running_loop().sock_recv(connection, MAX_HELLO_BYTES)
            if not more:
                raise ValueError("the sender hung up during its hello")
            hello += more
    except BaseException:
        os.close(fds[0])
        raise
    return hello, fds[0]


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection.fileno())


def _map(pool: BlockPool, path: str, incarnation: str, hello: bytes, fd: int) -> Bytes:
    """Map the sender's blocks, [num_blocks, block_bytes], for as long as the array lives."""
    try:
        fields = json.loads(hello)
        if fields["incarnation"] != incarnation:
            raise ValueError(f"{path} belongs to process {fields['incarnation']}, not {incarnation}")
        if fields["block_bytes"] != pool.block_bytes:
            raise LayoutMismatchError("block_bytes", fields["block_bytes"], pool.block_bytes)
        num_blocks = int(fields["num_blocks"])
        size = num_blocks * pool.block_bytes
        if os.fstat(fd).st_size < size:
            raise ValueError(f"the pool has {os.fstat(fd).st_size} bytes; {size} were announced")
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            # A pool that shrinks while it is mapped would end this process, not the handoff.
            raise ValueError("the pool's memfd may shrink; accepted: one sealed against it")
        mapping = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        return np.frombuffer(mapping, dtype=np.uint8).reshape(num_blocks, pool.block_bytes)
    finally:
        os.close(fd)
