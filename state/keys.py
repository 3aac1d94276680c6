"""Every key of the fleet in Redis, one function each. One hash tag keeps them on one cluster slot."""

from __future__ import annotations

_PREFIX = "{baton}"


def all_keys() -> str:
    """Pattern of every key below."""
    return f"{_PREFIX}:*"


def epoch() -> str:
    """hash: `id`, `run_id` of the server it was opened on, `quiet_until` when nothing is granted.

    And `called:` with a router's id: when that last asked for a place or for grants.
    """
    return f"{_PREFIX}:epoch"


def worker_expiries() -> str:
    """zset: worker id, scored by when its announcement expires."""
    return f"{_PREFIX}:workers"


def worker_records() -> str:
    """hash: worker id to its announcement in JSON."""
    return f"{_PREFIX}:worker_records"


def starting_expiries() -> str:
    """zset: ids of starting workers, scored by when their announcements expire."""
    return f"{_PREFIX}:starting"


def starting_records() -> str:
    """hash: from the id of a starting worker to its announcement in JSON."""
    return f"{_PREFIX}:starting_records"


def queue() -> str:
    """zset: request key, scored by class and due time."""
    return f"{_PREFIX}:queue"


def entries() -> str:
    """hash: request key to `score tokens blocks grants_lost worker_key router_id`, waiting or granted."""
    return f"{_PREFIX}:entries"


def grants() -> str:
    """zset: request key, scored by when the grant expires."""
    return f"{_PREFIX}:grants"


def queue_sums() -> list[str]:
    """hashes: due time's bucket to the work that waits in it; wide, middle and narrow buckets."""
    return [f"{_PREFIX}:queue_sums:{width}" for width in ("wide", "middle", "narrow")]


def line() -> list[str]:
    """All that makes the queue, in the order in which the scripts expect it."""
    return [queue(), entries(), grants(), *queue_sums()]


def credits_of(worker_key: str) -> str:
    """Ledger (hash, see ledger.lua): the prompts' tokens bound to a worker and not yet computed."""
    return f"{_PREFIX}:credits:{worker_key}"


def leases_of(worker_key: str) -> str:
    """Ledger (hash, see ledger.lua): the KV blocks promised on a decode worker."""
    return f"{_PREFIX}:leases:{worker_key}"


def prefixes_of(worker_key: str) -> str:
    """set: hashes of the blocks in a worker's prefix cache."""
    return f"{_PREFIX}:prefixes:{worker_key}"


def shares() -> list[str]:
    """zsets: tenants by counter, by when they become idle, and idle ones by counter (see shares.lua)."""
    return [f"{_PREFIX}:tenants:{part}" for part in ("counters", "expiries", "debts")]


def budget_of(tenant: str) -> str:
    """hash: what a tenant has left of its budget (see budget.lua)."""
    return f"{_PREFIX}:budget:{tenant}"


def router_channel(router_id: str) -> str:
    """pub/sub: grants for the sessions of one router."""
    return f"{_PREFIX}:router:{router_id}"


def nudge_channel() -> str:
    """pub/sub: capacity has come back."""
    return f"{_PREFIX}:nudge"
