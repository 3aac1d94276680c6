"""Leases and results of batches, on a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.batches.executor import Executor, patiently
from gateway.batches.files import EXPIRIES, STORED, FileStore, StoreLimits, pieces_key
from gateway.batches.records import RUNNABLE, BatchStore, Ended, Lease, Recorded, Status, batch_key
from gateway.batches.upload import received_form
from gateway.serving.errors import ApiError
from gateway.serving.generations import ID_HEADER
from gateway.serving.shares import Room, Shares
from runtime.state import keys
from runtime.state.durable import DurableRedis
from runtime.state.store import Store
from tests.patience import PATIENCE_S
from tests.redis_server import redis_server
from tests.runtime.state.given_clock import NOW_KEY, START_MS, give_clock
from tests.runtime.state.patient import wait_patiently

pytestmark = pytest.mark.integration

LIMITS = StoreLimits(
    1000, max_tenant_bytes=100, max_stored_bytes=150, max_spooled_bytes=9999, file_ttl_s=3600
)
BIG = StoreLimits(10**6, 10**6, 10**6, 10**6, file_ttl_s=3600)
ABOUT = {"endpoint": "/v1/completions", "completion_window": "24h", "metadata": None}


async def never(*_: Any) -> None:
    raise AssertionError("a line was run")


class Stores:
    def __init__(self, url: str) -> None:
        self.redis = DurableRedis(url)
        self.files = FileStore(self.redis, LIMITS)
        self.batches = BatchStore(self.redis, LIMITS)

    async def file(self, name: str, size: int = 10, tenant: str = "acme", content: bytes = b"") -> None:
        await self.files.reserve(name, tenant, size, {"filename": "in", "purpose": "batch"})
        await self.files.append(name, 0, content or b"x" * size)
        lines = str(content.count(b"\n") or 4)
        await self.files.publish(name, tenant, "batch", 3600, 1, {"lines": lines})

    async def lease(self, content: bytes = b"") -> Lease:
        await self.file("in", content=content)
        file = await self.files.find("in", "acme")
        await self.batches.create("acme", file, ABOUT | {"input_file_id": "in"}, 60, 3600, [])
        lease = await self.batches.take()
        assert lease is not None
        return lease

    async def expire_lease(self, lease: Lease) -> None:
        with self.redis.client() as redis:
            await redis.zadd(RUNNABLE, {lease.batch.id: 0})

    async def fill(self, lease: Lease) -> None:
        """Record that the lines without a result were not run."""
        rows = dict.fromkeys(range(lease.batch.total), b"unrun\n")
        recorded = await self.batches.record(lease, rows, failed=True, needs_room=False)
        assert recorded is Recorded.DONE

    @contextlib.asynccontextmanager
    async def executing(self, app: ASGIApp = never) -> AsyncIterator[asyncio.Event]:
        """Run batches on an application; yield what wakes the executor."""
        wake = asyncio.Event()
        running = asyncio.create_task(Executor(app, str, self.batches, self.files, 1, wake).run())
        try:
            yield wake
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def ended(self, lease: Lease) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await self.batches.find(lease.batch.id, "acme")).fields.get("error_file_id") is None:
                await asyncio.sleep(0.01)

    async def errors(self, lease: Lease) -> list[dict[str, Any]]:
        found = b"".join([piece async for piece in self.files.content(lease.batch.errors)])
        return [json.loads(row) for row in found.splitlines()]

    async def output(self, lease: Lease) -> bytes:
        return b"".join([piece async for piece in self.files.content(lease.batch.results)])


@pytest_asyncio.fixture
async def stores(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stores]:
    wait_patiently(monkeypatch)
    await (await Store.connect(redis_url, PATIENCE_S)).close()  # waits for the server
    opened = Stores(redis_url)
    with opened.redis.client() as redis:
        await redis.flushall()
        yield opened
        await redis.flushall()
    await opened.redis.close()


async def test_a_line_has_one_result_whoever_records_it(stores: Stores) -> None:
    lease = await stores.lease()
    assert await stores.batches.record(lease, {0: b"first\n"}, failed=False) is Recorded.DONE
    assert await stores.batches.record(lease, {0: b"second\n", 3: b"third\n"}, failed=False) is Recorded.DONE
    assert await stores.batches.record(lease, {3: b"failed\n"}, failed=True) is Recorded.DONE
    assert await stores.output(lease) == b"first\nthird\n"
    batch = await stores.batches.find(lease.batch.id, "acme")
    assert (batch.completed, batch.failed) == (2, 0)


async def test_who_has_lost_the_lease_changes_nothing(stores: Stores) -> None:
    stale = await stores.lease()
    assert await stores.batches.take() is None, "it is held"
    await stores.expire_lease(stale)
    lease = await stores.batches.take()
    assert lease is not None
    assert lease.fence == stale.fence + 1
    assert await stores.batches.record(stale, {0: b"stale\n"}, failed=False) is Recorded.LEASE_LOST
    assert await stores.batches.renew(stale) is None
    assert not await stores.batches.finalize(stale)
    assert await stores.batches.end(stale, Status.COMPLETED) is Ended.LEASE_LOST
    await stores.batches.give_back(stale)
    assert await stores.batches.take() is None, "the new holder keeps it"
    assert await stores.batches.record(lease, {0: b"fresh\n"}, failed=False) is Recorded.DONE
    await stores.fill(lease)
    assert await stores.batches.finalize(lease)
    assert await stores.batches.end(lease, Status.COMPLETED) is Ended.DONE
    assert await stores.output(lease) == b"fresh\n"


async def test_a_batch_that_is_given_back_is_free_at_once(stores: Stores) -> None:
    lease = await stores.lease()
    await stores.batches.give_back(lease)
    assert await stores.batches.renew(lease) is None
    assert await stores.batches.take() is not None


async def test_a_clock_set_back_keeps_no_batch_from_running(stores: Stores) -> None:
    lease = await stores.lease()
    with stores.redis.client() as redis:
        await redis.zincrby(RUNNABLE, 3_600_000, lease.batch.id)
    assert await stores.batches.take() is not None


async def test_results_wait_for_room(stores: Stores) -> None:
    lease = await stores.lease()
    big = b"x" * (LIMITS.max_tenant_bytes - 10) + b"\n"
    assert await stores.batches.record(lease, {0: big}, failed=False) is Recorded.NO_ROOM
    assert await stores.batches.record(lease, {0: big[1:]}, failed=False) is Recorded.DONE


async def test_a_repeated_record_needs_no_more_room(stores: Stores) -> None:
    """It is repeated where the response to the first call was lost."""
    lease = await stores.lease()
    results = {0: b"x" * (LIMITS.max_tenant_bytes - 10)}
    for _ in range(2):
        assert await stores.batches.record(lease, results, failed=False) is Recorded.DONE
    assert await stores.batches.record(lease, results | {1: b"y"}, failed=False) is Recorded.NO_ROOM
    assert await stores.output(lease) == results[0]


async def test_a_repeated_cancel_changes_nothing_more(stores: Stores) -> None:
    """It is repeated where the response to the first call was lost."""
    lease = await stores.lease()
    assert await stores.batches.cancel(lease.batch.id)
    with stores.redis.client() as redis:
        await redis.hset(batch_key(lease.batch.id), "cancelling_at", 7)
    assert await stores.batches.cancel(lease.batch.id)
    assert (await stores.batches.find(lease.batch.id, "acme")).to_json()["cancelling_at"] == 7
    await stores.fill(lease)
    assert await stores.batches.end(lease, Status.CANCELLED) is Ended.DONE
    assert not await stores.batches.cancel(lease.batch.id)


async def test_a_file_without_room_is_refused_before_it_is_read(stores: Stores) -> None:
    await stores.file("a", 60)
    assert (await stores.files.room("acme"), await stores.files.room("other")) == (40, 90)
    await stores.file("b", 40)
    with pytest.raises(ApiError, match="100 of this tenant"):
        await stores.files.room("acme")

    async def received() -> Any:
        raise AssertionError("a form was read that has no room")

    spool = Shares(1000)
    for size, most, status in ((401, 400, 413), (600, 10**6, 503)):
        lengths = [(b"content-length", b"%d" % size), (b"content-type", b"multipart/form-data; boundary=a")]
        request = Request({"type": "http", "headers": lengths}, received)
        with pytest.raises(ApiError) as caught:
            async with received_form(request, most, Room(spool, "acme")):
                pass
        assert (caught.value.problem.status, spool.held) == (status, 0)


async def test_bytes_are_counted_until_the_file_is_gone(stores: Stores) -> None:
    await stores.file("a", 60)
    with pytest.raises(ApiError, match="60 of this tenant"):
        await stores.file("b", 60)
    await stores.file("b", 90, "other")
    with pytest.raises(ApiError, match="150 of all"):
        await stores.file("c", 1, "third")
    await stores.files.delete("a", "acme", "batch")
    await stores.files.delete("a", "acme", "batch")
    await stores.files.remove_expired("b")
    with stores.redis.client() as redis:
        assert await redis.hgetall(STORED) == {b"all": b"0"}
        assert {key async for key in redis.scan_iter()} == {STORED.encode(), keys.durable_clock().encode()}


async def test_an_input_outlives_its_expiry_until_the_batch_has_ended(stores: Stores) -> None:
    lease = await stores.lease()
    await stores.files.remove_expired("in")
    assert (await stores.files.find("in", "acme")).bytes == 10
    await stores.fill(lease)
    await stores.batches.end(lease, Status.CANCELLED)
    await stores.files.remove_expired("in")
    await stores.files.remove_expired(lease.batch.errors)
    with pytest.raises(ApiError, match="there is no file"):
        await stores.files.find("in", "acme")
    await stores.batches.forget(lease.batch.id)
    with stores.redis.client() as redis:
        assert not await redis.exists(batch_key(lease.batch.id))
        assert await redis.zcard(EXPIRIES) == 0


async def test_a_look_for_work_costs_the_same_beside_many_batches(stores: Stores) -> None:
    lease = await stores.lease()
    file = await stores.files.find("in", "acme")

    async def commands_of_a_look() -> int:
        with stores.redis.client() as redis:
            before = (await redis.info("stats"))["total_commands_processed"]
            assert await stores.batches.take() is None
            return int((await redis.info("stats"))["total_commands_processed"]) - int(before)

    few = await commands_of_a_look()
    for _ in range(200):
        await stores.batches.create("acme", file, ABOUT | {"input_file_id": "in"}, 60, 3600, [])
        assert await stores.batches.take() is not None
    assert await commands_of_a_look() == few
    assert (await stores.batches.renew(lease)) is not None


async def test_a_line_that_cannot_be_read_fails_alone(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores.batches, "_limits", BIG)
    lease = await stores.lease(b"{} {}\n{\n")
    await stores.batches.give_back(lease)
    async with stores.executing():
        await stores.ended(lease)
    assert [row["error"]["code"] for row in await stores.errors(lease)] == ["invalid_request"] * 2
    assert (await stores.batches.find(lease.batch.id, "acme")).status is Status.COMPLETED


async def test_a_failed_look_for_batches_is_not_the_last(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [asyncio.Event(), asyncio.Event()]
    left = list(looks)

    async def take() -> None:
        if left:
            left.pop(0).set()
            raise ValueError

    monkeypatch.setattr(stores.batches, "take", take)
    async with stores.executing() as wake, asyncio.timeout(PATIENCE_S):
        await looks[0].wait()
        wake.set()
        await looks[1].wait()


async def test_a_cancelled_batch_ends_without_room(stores: Stores) -> None:
    lease = await stores.lease(b"{}\n{}\n")
    await stores.file("full", LIMITS.max_tenant_bytes - 10)
    await stores.batches.cancel(lease.batch.id)
    await stores.batches.give_back(lease)
    async with stores.executing():
        await stores.ended(lease)
    assert [row["error"]["code"] for row in await stores.errors(lease)] == ["batch_cancelled"] * 2


async def test_a_batch_that_has_ended_records_nothing_more(stores: Stores) -> None:
    lease = await stores.lease()
    await stores.fill(lease)
    assert await stores.batches.end(lease, Status.CANCELLED) is Ended.DONE
    assert await stores.batches.record(lease, {0: b"late\n"}, failed=False) is Recorded.LEASE_LOST
    assert await stores.output(lease) == b""


async def test_an_upload_that_has_expired_leaves_nothing(stores: Stores) -> None:
    await stores.files.reserve("slow", "acme", 10, {"filename": "in", "purpose": "batch"})
    await stores.files.append("slow", 0, b"1")
    await stores.files.append("slow", 0, b"1")
    assert await stores.files.pieces("slow", 0) == [b"1"], "a repeated call appends nothing"
    await stores.files.remove_expired("slow")
    with pytest.raises(ApiError, match="too long"):
        await stores.files.append("slow", 1, b"2")
    with pytest.raises(ApiError, match="too long"):
        await stores.files.publish("slow", "acme", "batch", 3600, 1, {"lines": "2"})
    with stores.redis.client() as redis:
        assert {key async for key in redis.scan_iter()} == {STORED.encode(), keys.durable_clock().encode()}


async def test_no_purpose_reads_another_tenants_files(stores: Stores) -> None:
    await stores.file("theirs", tenant="acme:eu")
    page = await stores.files.page("eu", "batch:acme", "", 10, newest_first=True)
    assert page == ([], False)


async def test_a_tenant_keeps_so_many_batches(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.batches.records.MAX_KEPT", 2)
    first = await stores.lease()
    file = await stores.files.find("in", "acme")

    async def another() -> str:
        about = ABOUT | {"input_file_id": "in"}
        return (await stores.batches.create("acme", file, about, 60, 3600, [])).id

    second = await another()
    with pytest.raises(ApiError, match="2 batches have not ended"):
        await another()
    await stores.fill(first)
    assert await stores.batches.end(first, Status.CANCELLED) is Ended.DONE
    third = await another()
    assert [batch.id for batch in (await stores.batches.page("acme", "", 10))[0]] == [third, second]


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.CANCELLED])
async def test_a_batch_does_not_end_before_each_line_has_a_result(stores: Stores, status: Status) -> None:
    lease = await stores.lease()
    await stores.batches.record(lease, {0: b"a\n", 1: b"b\n", 3: b"d\n"}, failed=False)
    assert await stores.batches.end(lease, status) is Ended.LINES_MISSING
    assert (await stores.batches.renew(lease)) is not None, "its lease is still held"
    await stores.batches.record(lease, {2: b"c\n"}, failed=False)
    for _ in range(2):  # the response to the first call may be lost
        assert await stores.batches.end(lease, status) is Ended.DONE
    assert (await stores.batches.find(lease.batch.id, "acme")).status is status


async def test_a_line_that_the_input_has_no_longer_fails_alone(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores.batches, "_limits", BIG)
    lease = await stores.lease(b"{\n{\n{\n")
    with stores.redis.client() as redis:
        await redis.delete(pieces_key("in"))
    await stores.batches.give_back(lease)
    async with stores.executing():
        await stores.ended(lease)
    assert len(await stores.errors(lease)) == 3


async def test_an_upload_of_which_redis_has_lost_a_part_is_refused(stores: Stores) -> None:
    await stores.files.reserve("torn", "acme", 10, {"filename": "in", "purpose": "batch"})
    await stores.files.append("torn", 0, b"1\n")
    with stores.redis.client() as redis:
        await redis.delete(pieces_key("torn"))
    with pytest.raises(ApiError, match="lost a part of the upload; send the file again"):
        await stores.files.append("torn", 1, b"2\n")
    with pytest.raises(ApiError, match="lost a part of the upload; send the file again"):
        await stores.files.publish("torn", "acme", "batch", 3600, 1, {"lines": "1"})


async def test_lines_whose_results_redis_has_lost_are_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis restarts with what it had saved before the first results, which it had acknowledged."""
    wait_patiently(monkeypatch)
    monkeypatch.setattr("gateway.batches.executor.AWAY_S", 0.01)
    lines = [{"custom_id": str(number), "url": "/v1/completions", "body": {}} for number in range(5)]
    content = b"".join(json.dumps(row).encode() + b"\n" for row in lines)
    with redis_server() as server:
        await (await Store.connect(server.url, PATIENCE_S)).close()  # waits for the server
        stores = Stores(server.url)
        monkeypatch.setattr(stores.batches, "_limits", BIG)
        monkeypatch.setattr(stores.files, "limits", BIG)
        calls: list[bytes] = []

        async def app(scope: Scope, _receive: Receive, send: Send) -> None:
            request_id = dict(scope["headers"])[ID_HEADER.encode()]
            if not calls:
                with stores.redis.client() as redis:
                    await redis.save()
            calls.append(request_id)
            if len(calls) == len(lines):
                await until_recorded(len(lines) - 1)
                server.stop(kill=True)
                server.start()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send(
                {"type": "http.response.body", "body": json.dumps({"id": request_id.decode()}).encode()}
            )

        async def until_recorded(count: int) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while (await stores.batches.find(lease.batch.id, "acme")).completed < count:
                    await asyncio.sleep(0.01)

        lease = await stores.lease(content)
        await stores.batches.give_back(lease)
        async with stores.executing(app), asyncio.timeout(PATIENCE_S):
            while (await patiently(lambda: stores.batches.find(lease.batch.id, "acme"))).status is not (
                Status.COMPLETED
            ):
                await asyncio.sleep(0.01)
        rows = [json.loads(row) for row in (await stores.output(lease)).splitlines()]
        assert sorted(row["custom_id"] for row in rows) == [row["custom_id"] for row in lines]
        assert sorted(calls) == sorted([*dict.fromkeys(calls), *list(dict.fromkeys(calls))[:-1]])
        await stores.redis.close()


@pytest.mark.parametrize("jump_s", [48 * 3600, -48 * 3600], ids=["forward", "backward"])
async def test_a_jump_of_the_clock_neither_ends_nor_keeps_anything(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    give_clock(monkeypatch)
    now_ms = START_MS

    async def live(steps: int, step_s: int = 1) -> Lease | None:
        """Pass the time while gateways look for batches; return one that was free."""
        nonlocal now_ms
        found = None
        for _ in range(steps):
            now_ms += step_s * 1000
            with stores.redis.client() as redis:
                await redis.set(NOW_KEY, now_ms)
            found = await stores.batches.take() or found
        return found

    async def due() -> list[bytes]:
        found: list[bytes] = await stores.redis.run("list_due", [EXPIRIES], [16, ""])
        return found

    with stores.redis.client() as redis:
        await redis.set(NOW_KEY, now_ms)
    lease = await stores.lease()
    await live(2)
    assert await live(1, jump_s) is None, "its gateway holds it"
    assert await stores.batches.renew(lease) == (Status.IN_PROGRESS, 58)
    assert await due() == [], "no file is removed"
    assert await live(5) is None
    other = await live(2)
    assert other is not None, "its gateway is silent"
    for left_s in range(50, -1, -5):
        assert await stores.batches.renew(other) == (Status.IN_PROGRESS, left_s + 1)
        await live(5)
    await live(709, step_s=5)
    assert await due() == [b"in"]
    batch = (await stores.batches.find(lease.batch.id, "acme")).to_json()
    assert batch["expires_at"] - batch["created_at"] == 60
