"""Which workers share a GPU's memory, and that what is shared is the memory."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.kv.block_checksums import BlockChecksums
from engine.kv.kv_pool import BlockLayout, KVPool
from kvtransfer.errors import TransportUnavailableError
from kvtransfer.manifest import CudaPool
from kvtransfer.transports.transport import TransportMode
from worker.errors import StartupError
from worker.handoff.cuda_ipc import PoolBlocks, cuda_transport_of, host_identity, map_blocks, offer_of

ROOT = Path(__file__).resolve().parents[3]
LAYOUT = BlockLayout(2, 16, 2, 64, torch.float32)


def test_host_memory_is_not_shared_as_a_gpus() -> None:
    pool = KVPool(LAYOUT, 4)
    assert offer_of(TransportMode.AUTO, pool) is None
    assert cuda_transport_of(TransportMode.AUTO, pool) is None


def test_who_asks_for_it_without_a_gpu_is_refused() -> None:
    pool = KVPool(LAYOUT, 4)
    message = "--transport is cuda_ipc and the KV pool is on cpu; accepted: a GPU"
    with pytest.raises(StartupError, match=message):
        offer_of(TransportMode.CUDA_IPC, pool)
    with pytest.raises(StartupError, match=message):
        cuda_transport_of(TransportMode.CUDA_IPC, pool)


def test_neighbours_know_each_other() -> None:
    say = "from worker.handoff.cuda_ipc import host_identity; print(host_identity())"
    other = subprocess.run([sys.executable, "-c", say], cwd=ROOT, check=True, capture_output=True, text=True)
    assert host_identity()
    assert other.stdout.strip() == host_identity()


def test_a_host_is_a_boot_and_its_namespaces(tmp_path: Path) -> None:
    def identity(name: str, boot: str, pid: str, ipc: str) -> str:
        random, namespaces = tmp_path / name / "sys/kernel/random", tmp_path / name / "self/ns"
        random.mkdir(parents=True)
        namespaces.mkdir(parents=True)
        (random / "boot_id").write_text(boot)
        (namespaces / "pid").symlink_to(pid)
        (namespaces / "ipc").symlink_to(ipc)
        return host_identity(tmp_path / name)

    first = identity("first", "b", "pid:[1]", "ipc:[1]")
    assert identity("neighbour", "b", "pid:[1]", "ipc:[1]") == first
    others = [("c", "pid:[1]", "ipc:[1]"), ("b", "pid:[2]", "ipc:[1]"), ("b", "pid:[1]", "ipc:[2]")]
    assert len({first, *(identity(str(n), *other) for n, other in enumerate(others))}) == 4
    assert host_identity(tmp_path / "nowhere") == ""


def test_a_handle_of_another_size_is_refused() -> None:
    with pytest.raises(TransportUnavailableError, match="the handle has 3 bytes; accepted: 72"):
        map_blocks(KVPool(LAYOUT, 4), CudaPool("here", "GPU-0", b"abc", 4))


def test_checksums_are_of_the_blocks_asked_for() -> None:
    pool = KVPool(LAYOUT, 4)
    pool.tensor.copy_(torch.randn(pool.tensor.shape))
    first, second = PoolBlocks(pool).checksums([3, 1])
    assert [second, first] == BlockChecksums(pool.tensor).of([1, 3])
    assert first != second
    assert max(first, second) < 2**64


SENDER = """
import sys, torch
from engine.kv.gpu_sharing import gpu_uuid, share
from engine.kv.kv_pool import BlockLayout, KVPool
from worker.handoff.cuda_ipc import PoolBlocks
before = torch.zeros(3_000_000, device="cuda")  # so that the pool need not begin an allocation
pool = KVPool(BlockLayout(2, 16, 2, 64, torch.float32), 8, torch.device("cuda"))
pool.tensor.copy_(torch.arange(pool.tensor.numel(), device="cuda").view(pool.tensor.shape))
torch.cuda.synchronize()
checksums = PoolBlocks(pool).checksums(range(8))
print(gpu_uuid(pool.device), share(pool.tensor).hex(), *checksums, flush=True)
sys.stdin.read()
"""


@pytest.mark.gpu
def test_another_process_reads_the_memory_and_survives_its_death() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SENDER]
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as sender:
        assert sender.stdout is not None
        gpu, handle, *checksums = sender.stdout.readline().split()
        pool = KVPool(LAYOUT, 4, torch.device("cuda"))
        theirs = CudaPool("here", gpu, bytes.fromhex(handle), 8)
        with pytest.raises(TransportUnavailableError, match="were announced"):
            map_blocks(pool, dataclasses.replace(theirs, num_blocks=10**9))
        blocks = map_blocks(pool, theirs)
        blocks.fetch([(0, 5, 2), (3, 1, 1)])
        size, shape = pool.tensor[0].numel(), pool.tensor.shape[1:]
        expected = torch.arange(8 * size, dtype=torch.float32).view(8, *shape)
        assert torch.equal(pool.tensor[[0, 1, 3]].cpu(), expected[[5, 6, 1]])
        assert not pool.tensor[2].any()
        assert PoolBlocks(pool).checksums([0, 1, 3]) == [int(checksums[block]) for block in (5, 6, 1)]
        sender.kill()
        sender.wait()
    blocks.close()
    assert float(pool.tensor[0].sum()) == float(expected[5].sum()), "the device is of no use any more"
