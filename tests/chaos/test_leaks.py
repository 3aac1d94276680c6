"""What is still held is judged as soon as it should be gone."""

from __future__ import annotations

from router.core.actions.to_store import LEASE_TTL_S
from tests.chaos.leaks import GRACE_S, LATE_S, ORPHANED_S, AtRest, Orphans

LEASE = "leases of decode-0"
KEY = "leases of decode-0, tenant/a%2Fb/3#1"


def test_holds_are_overdue_once_nobody_renews_them_and_they_have_expired() -> None:
    at_rest = AtRest(now=100.0)
    gone_by = 100.0 + LEASE_TTL_S + LATE_S
    assert at_rest.overdue({LEASE: 2.0}, gone_by) == {}
    assert at_rest.overdue({LEASE: 2.0}, gone_by + 0.1) == {LEASE: 2.0}


def test_a_session_renews_its_holds_until_the_grace_of_its_client_is_over() -> None:
    at_rest = AtRest(now=100.0)
    sessions = {"sessions of router-0": 1.0, "blocks of decode-0": 4.0}
    end = 100.0 + GRACE_S + LATE_S
    assert at_rest.overdue(sessions | {LEASE: 2.0}, end) == {}
    assert at_rest.overdue({LEASE: 2.0}, end + LEASE_TTL_S) == {}, "its session was there until then"
    assert AtRest(now=100.0).overdue(sessions | {LEASE: 2.0}, end + 0.1) == sessions


def test_a_hold_of_a_request_that_ended_long_ago_is_found_once_while_others_run() -> None:
    orphans = Orphans()
    orphans.end("a/b", 100.0)
    late = 100.0 + ORPHANED_S + 0.1
    holds = {KEY: 3.0, "credits of prefill-0, tenant/unknown/1": 1.0}
    assert orphans.look(holds, (), late - 0.2) == {}
    assert orphans.look(holds, ("a/b",), late) == {}, "its id has come again"
    assert orphans.look(holds, (), late) == {KEY: 3.0}
    assert orphans.look(holds, (), late) == {}
