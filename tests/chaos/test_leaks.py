"""Holds are judged as soon as they should be gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.state.records import LEASE_TTL_S
from runtime.state.store import Store
from tests.chaos.leaks import GRACE_S, LATE_S, ORPHANED_S, AtRest, Orphans, holds
from tests.runtime.state.common import DECODE, PREFILL, entry, worker

LEASE = "leases of decode-0"
KEY = "leases of decode-0, tenant/a%2Fb/3#1"


def test_holds_that_nobody_renews_are_overdue_when_expired() -> None:
    at_rest = AtRest(now=100.0)
    gone_by = 100.0 + LEASE_TTL_S + LATE_S
    assert at_rest.overdue({LEASE: 2.0}, gone_by) == {}
    assert at_rest.overdue({LEASE: 2.0}, gone_by + 0.1) == {LEASE: 2.0}


def test_a_session_keeps_its_holds_for_its_clients_grace() -> None:
    at_rest = AtRest(now=100.0)
    sessions = {"sessions of router-0": 1.0, "blocks of decode-0": 4.0}
    end = 100.0 + GRACE_S + LATE_S
    assert at_rest.overdue(sessions | {LEASE: 2.0}, end) == {}
    assert at_rest.overdue({LEASE: 2.0}, end + LEASE_TTL_S) == {}, "its session was there until then"
    assert AtRest(now=100.0).overdue(sessions | {LEASE: 2.0}, end + 0.1) == sessions


def test_a_hold_of_an_ended_request_is_found_while_others_run() -> None:
    orphans = Orphans()
    orphans.end("a/b", 100.0)
    late = 100.0 + ORPHANED_S + 0.1
    holds = {KEY: 3.0, "credits of prefill-0, tenant/unknown/1": 1.0}
    assert orphans.look(holds, (), late - 0.2) == {}
    assert orphans.look(holds, ("a/b",), late) == {}, "its id has come again"
    assert orphans.look(holds, (), late) == {KEY: 3.0}
    assert orphans.look(holds, (), late) == {}


@pytest.mark.integration
async def test_a_hold_is_found_by_the_request_of_its_key(store: Store, redis_url: str) -> None:
    await store.register_worker(worker(), ttl_s=30)
    key = "tenant/request/0"
    await store.enqueue(entry(key), 10)
    prefill, decode = replace(PREFILL, key=worker().key), replace(DECODE, key=worker().key)
    await store.grant("r1", prefill, [decode])
    await store.settle(key, prefill.key, [decode], LEASE_TTL_S)
    found = await holds(redis_url)
    assert {what.partition(" of ")[0] for what in found} == {"leases", "credits"}
    orphans = Orphans()
    orphans.end("request", 0.0)
    assert orphans.look(found, (), ORPHANED_S + 1.0) == found
