"""A prefill worker's sender side in a process of its own, told what its engine does by lines on stdin.

Every answer is one line of JSON on stdout; endings of handoffs come as `over` lines by themselves.
"""

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
from pathlib import Path

import grpc
import torch

from engine.kv.kv_pool import BlockLayout, KVPool
from kvtransfer.fence import FenceGuard
from kvtransfer.handoff import Outcome, SenderLimits
from kvtransfer.manifest import Commit
from kvtransfer.pools.host_blocks import InPlace
from kvtransfer.sending.lending import Lending
from kvtransfer.sending.sender import Handoffs
from kvtransfer.sending.service import KVTransferService
from kvtransfer.transports.nixl import NixlAgent
from kvtransfer.transports.shm import ShmServer
from scheduling.columns import TokenColumns
from scheduling.request import Fence
from tests.kvtransfer.blocks import block_hash, fill_block


def say(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Sender:
    def __init__(self, options: argparse.Namespace) -> None:
        stored = getattr(torch, options.stored) if options.stored else None
        layout = BlockLayout(options.layers, 16, 2, 64, torch.float32, stored)
        self.pool = KVPool(layout, options.blocks)
        limits = SenderLimits(options.open_within_s, options.acknowledge_within_s)
        self.guard = FenceGuard()
        self.source = InPlace(self.pool)
        self.handoffs = Handoffs("source", self.source, self.guard, self.on_over, limits)
        handles = itertools.count(1000)
        self.lending = Lending(
            "source",
            self.handoffs,
            lambda: next(handles),
            lambda handle, hashes, limit_s: say(hold=handle, num_hashes=len(hashes), limit_s=limit_s),
            lambda handle: say(released=handle),
        )

    def held(self, handle: int, places: list[int]) -> None:
        """Report blocks that the engine holds for a loan."""
        for place in places:
            fill_block(self.pool, place)
        self.lending.on_held(handle, places, [block_hash(place) for place in places], None)

    def refused(self, handle: int) -> None:
        self.lending.on_refused(handle)

    def stop(self) -> None:
        """Stand still, as a stopped or swapping process does."""
        os.kill(os.getpid(), signal.SIGSTOP)

    def on_over(self, handle: int, outcome: Outcome) -> None:
        if handle in self.lending:
            self.lending.on_over(handle)
            return
        end, corrupt = outcome.end.value, outcome.num_corrupt_blocks
        say(over=handle, end=end, reason=outcome.reason, num_corrupt_blocks=corrupt)

    def begin(self, handle: int, fence: dict[str, object], num_blocks: int) -> None:
        named = Fence(**fence)  # type: ignore[arg-type]  # from JSON
        self.guard.admit(named, (named.choice,), 0.0)
        self.handoffs.begin(handle, named, num_blocks)

    def fill(self, handle: int, first_index: int, places: list[int]) -> None:
        for place in places:
            fill_block(self.pool, place)
        hashes = [block_hash(index) for index in range(first_index, first_index + len(places))]
        self.handoffs.fill(handle, first_index, places, hashes)

    def commit(self, handle: int, token_id: int) -> None:
        columns = TokenColumns(handles=[handle], choices=[0], indexes=[0], token_ids=[token_id])
        self.handoffs.commit(handle, Commit(16, columns))

    def abort(self, handle: int, reason: str) -> None:
        self.handoffs.abort(handle, reason)

    def flip(self, place: int) -> None:
        """Damages a block whose checksum has been taken, as a bug that writes to a filled block would."""
        self.handoffs._executor.submit(lambda: None).result()  # comes after all checksums asked for
        self.pool.block_bytes_view(place)[77] ^= 0x10

    def count(self) -> None:
        say(count=len(self.handoffs))

    def memory(self) -> None:
        status = Path("/proc/self/status").read_text()
        say(anonymous_kib=int(status.split("RssAnon:")[1].split()[0]))


async def main(options: argparse.Namespace) -> None:
    sender = Sender(options)
    shm = ShmServer(sender.pool, "source", Path(options.shm_dir)) if options.shm_dir else None
    if shm is not None:
        await shm.start()
    server = grpc.aio.server()
    socket = "" if shm is None else str(shm.path)
    # Kept here: an agent that is forgotten cannot be read from.
    nixl = NixlAgent(f"sender-{os.getpid()}", sender.pool) if options.nixl else None
    service = KVTransferService(
        sender.handoffs,
        sender.source,
        fingerprint="model",
        block_size=16,
        shm_socket=socket,
        nixl=None if nixl is None else nixl.describe(),
        lending=None if options.no_loans else sender.lending,
    )
    service.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    say(address=f"127.0.0.1:{port}", shm_socket=socket)
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await reader.readline():
        for name, arguments in json.loads(line).items():
            getattr(sender, name)(*arguments)
    await server.stop(0)
    sender.handoffs.close()
    if shm is not None:
        await shm.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--shm-dir", default="")
    parser.add_argument("--nixl", default="")
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--stored", choices=["", "int8", "float8_e4m3fn"], default="")
    parser.add_argument("--no-loans", default="")
    parser.add_argument("--open-within-s", type=float, default=30.0)
    parser.add_argument("--acknowledge-within-s", type=float, default=30.0)
    asyncio.run(main(parser.parse_args()))
