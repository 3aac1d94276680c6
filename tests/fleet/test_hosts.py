"""A worker whose processes a cluster starts: streams, handoffs and deaths as elsewhere."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from baton import AsyncClient, Completion, Sampling, Stop
from baton.fleet import Fleet
from baton.types import Path as RequestPath
from tests.adapters import merge, write_adapter
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import EXACT, TRIES, assert_all_is_freed, children_of, exact, greedy, snapshot, until
from tests.fleet.test_leaving import handoffs
from tests.fleets import DEMO_MODEL
from tests.forked import ForkedProcess, Zygote
from tests.model_zoo import stock_generate
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.zygote import Order
from worker.errors import EXIT_GROUP

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
NAME, PREFILL = "decode-hosts", "prefill-hosts"
# So many at once that both decode workers have some.
PROMPTS = [[3 + (i * step) % 89 for i in range(40 + 7 * step)] for step in range(1, 9)]
FRESH = [[2 + token for token in prompt] for prompt in PROMPTS]
"""Not in any prefix cache."""
SAMPLING = Sampling(temperature=1.0, seed=3, repetition_penalty=1.3, presence_penalty=0.5)
GREEDY = Sampling(temperature=0.0)
STOP = Stop(max_tokens=200, ignore_eos=True)
TORCHRUN = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"


def flags(fleet: Fleet, name: str = NAME) -> tuple[str, ...]:
    """The flags of both processes of a worker."""
    own = "--redis", fleet.redis_url, "--model", str(DEMO_MODEL), "--worker-id", name
    return (*own, *EXACT, "--tensor-parallel", "2", "--threads", "1")


@contextmanager
def torchrun(fleet: Fleet, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run torchrun with a worker of two processes, which have nothing in common but connections."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *TORCHRUN, "-m", "decode_worker", *flags(fleet)],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for pid in children_of(process.pid) if process.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


def pid_of(process: subprocess.Popen[bytes], rank: int) -> int:
    """The process of a rank that torchrun has started."""
    [found] = [
        pid
        for pid in children_of(process.pid)
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    ]
    return found


@asynccontextmanager
async def pods(
    fleet: Fleet, zygote: Zygote, log: Path, program: str, own_flags: Sequence[str]
) -> AsyncIterator[list[ForkedProcess]]:
    """The same, as a LeaderWorkerSet starts them: the leader and its follower."""
    variables = {"LWS_LEADER_ADDRESS": "127.0.0.1", "LWS_GROUP_SIZE": "2", "MASTER_PORT": str(free_port())}
    orders = [
        Order(program, tuple(own_flags), str(ROOT), variables | {"LWS_WORKER_INDEX": rank}) for rank in "01"
    ]
    with log.open("wb") as stderr:
        processes = [zygote.fork(order, stderr) for order in orders]
    try:
        yield processes
    finally:
        for process in processes:
            process.close()


async def until_connected(client: AsyncClient, name: str = NAME, *, connected: bool = True) -> None:
    async def is_so() -> bool:
        workers = (await snapshot(client)).workers
        return connected == any(worker.worker_id == name and worker.connected for worker in workers)

    await until(is_so, f"the worker is {'there' if connected else 'gone'}", 2 * PATIENCE_S)


async def streams(
    client: AsyncClient, prompts: Sequence[list[int]], struck: int | None = None, number: int = 0
) -> list[Completion]:
    """All prompts at once; a process of the group gets a signal while it has some of them."""
    for _ in range(TRIES):  # all may have ended before it is known that the group has some
        asked = asyncio.gather(*(client.complete(p, sampling=SAMPLING, stop=STOP) for p in prompts))
        is_busy = False
        while struck is not None and not is_busy and not asked.done():
            await asyncio.sleep(0.01)
            workers = (await snapshot(client)).workers
            is_busy = any(worker.worker_id == NAME and worker.running > 1 for worker in workers)
        if struck is not None and is_busy:
            os.kill(struck, number)
        found = await asked
        if struck is None or is_busy:
            return found
    raise AssertionError("no streams were seen to run on the group")


def assert_like(found: Sequence[Completion], expected: Sequence[Completion]) -> None:
    for got, wanted in zip(found, expected, strict=True):
        assert got.choices[0].token_ids == wanted.choices[0].token_ids
    assert any(completion.finished.usage.attempts >= 2 for completion in found)


@pytest.mark.long
@pytest.mark.timeout(600)  # torchrun starts programs that import everything anew, twice
async def test_a_worker_on_several_hosts_is_like_any_other(
    run_dir: Path, make_fleet: MakeFleet, zygote: Zygote, tmp_path: Path
) -> None:
    red = write_adapter(DEMO_MODEL, tmp_path / "adapters" / "red", seed=1, rank=4)
    spec = exact(run_dir, placement="disaggregated", lora_dir=red.parent, lora_memory_mb=1, lora_rank=4)
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        answers, expected = await greedy(client, PROMPTS, 24), await streams(client, PROMPTS)
        with torchrun(fleet, tmp_path / "torchrun.log") as process:
            await until_connected(client)
            # The group decodes from KV of a worker of one process, with the same numbers.
            for got, wanted in zip(await greedy(client, PROMPTS, 24), answers, strict=True):
                assert got.token_ids == wanted.token_ids
                assert got.logprobs == pytest.approx(wanted.logprobs, rel=0, abs=1e-9)
            assert_like(await streams(client, PROMPTS, pid_of(process, 1), signal.SIGKILL), expected)
            await until_connected(client, connected=False)
            await until_connected(client)  # torchrun has started both again
            before = [await handoffs(fleet, name) for name in ("prefill-0", "decode-0")]
            found = await streams(client, FRESH, pid_of(process, 0), signal.SIGTERM)
            sent, received = [await handoffs(fleet, name) for name in ("prefill-0", "decode-0")]
            # The prefill worker has sent some to the group, so the group has sent at least as many itself.
            assert received - before[1] >= sent - before[0] >= len(FRESH)
            assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
            assert_like(found, await streams(client, FRESH))
        assert "its process of rank 1 is gone" in (tmp_path / "torchrun.log").read_text()
        log = tmp_path / "pods.log"
        async with pods(fleet, zygote, log, "decode_worker", flags(fleet)) as (leader, follower):
            await until_connected(client)
            assert_like(await streams(client, PROMPTS, leader.pid, signal.SIGKILL), expected)
            assert await asyncio.to_thread(follower.wait) == EXIT_GROUP
        await assert_prefills(fleet, client, zygote, red, tmp_path)
        await assert_all_is_freed(fleet, client)


async def assert_prefills(fleet: Fleet, client: AsyncClient, zygote: Zygote, red: Path, folder: Path) -> None:
    """A prefill worker on several hosts, the only one left, computes prompts with an adapter and without."""
    fleet.process("prefill-0").kill()
    own = (*flags(fleet, PREFILL), "--lora-dir", str(red.parent), "--lora-memory-mb", "1", "--lora-rank", "4")
    async with pods(fleet, zygote, folder / "prefill.log", "prefill_worker", own) as (leader, follower):

        async def is_known() -> bool:
            workers = (await snapshot(client)).workers
            known = {each.worker_id: each.loadable_adapters for each in workers if each.connected}
            return known == {"decode-0": 1, PREFILL: 1}

        await until(is_known, "both workers have found the adapter", 2 * PATIENCE_S)
        stop = Stop(max_tokens=24, ignore_eos=True)
        before, prompts = await handoffs(fleet, "decode-0"), [[4 + token for token in p] for p in PROMPTS[:2]]
        num_handed_over = 0
        for adapter, model in (("red", merge(DEMO_MODEL, red, folder / "merged")), ("", DEMO_MODEL)):
            asked = [client.complete(p, sampling=GREEDY, stop=stop, adapter=adapter) for p in prompts]
            completions = await asyncio.gather(*asked)
            found = [list(each.choices[0].token_ids) for each in completions]
            assert found == [stock_generate(model, p, 24).tokens for p in prompts]
            num_handed_over += sum(
                each.finished.path is RequestPath.DISAGGREGATED and each.finished.usage.attempts == 1
                for each in completions
            )
        assert await handoffs(fleet, "decode-0") - before >= num_handed_over > 0
        os.kill(leader.pid, signal.SIGTERM)
        codes = [await asyncio.to_thread(process.wait) for process in (leader, follower)]
        assert codes == [0, 0]
