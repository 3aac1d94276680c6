"""The fleet's keys in Redis, one function each. Their common hash tag keeps them on one cluster slot."""

from __future__ import annotations

from scheduling.memory.tiers import Tier

_PREFIX = "{baton}"
_DURABLE = "{baton}durable"
"""`all_keys` does not match this, so a new epoch leaves these keys alone."""


def all_keys() -> str:
    """Return the pattern of every key of the fleet's own state: all below but the durable ones."""
    return f"{_PREFIX}:*"


def epoch() -> str:
    """hash: `id`, `run_id` of its server, and `quiet_until`, before which nothing is granted.

    A field `called:` with a router's name is the time when it last asked for a place or for grants. In
    an epoch after the first, `here:` marks routers that have entered it, and `awaited:` is the time until
    which another one, which was seen in the epoch before, is awaited.
    """
    return f"{_PREFIX}:epoch"


def workers() -> list[str]:
    """zset: worker ids, scored by when their announcements expire; hash: the announcements in JSON, by id."""
    return [f"{_PREFIX}:workers", f"{_PREFIX}:worker_records"]


def starting() -> list[str]:
    """The same for workers that do not serve yet."""
    return [f"{_PREFIX}:starting", f"{_PREFIX}:starting_records"]


def queue() -> str:
    """zset: request keys, scored by class and due time."""
    return f"{_PREFIX}:queue"


def entries() -> str:
    """hash: from a request key, waiting or granted, to
    `score tokens blocks grants_lost worker_key router_id`.
    """
    return f"{_PREFIX}:entries"


def grants() -> str:
    """zset: request keys, scored by when their grants expire."""
    return f"{_PREFIX}:grants"


def queue_sums() -> list[str]:
    """hashes: from a bucket of due times to its waiting work; wide, middle and narrow buckets."""
    return [f"{_PREFIX}:queue_sums:{width}" for width in ("wide", "middle", "narrow")]


def turns() -> list[str]:
    """Return the keys of the seats that tenants hold, and of whose turn it is (see lanes.lua).

    hash: what the seats of a request count, zset: when they expire, hash: their sums by tenant, zset: waiting
    requests by tenant, zset: the first of each tenant.
    """
    return [f"{_PREFIX}:{part}" for part in ("seats", "seat_expiries", "tenant_seats", "lanes", "turns")]


def seat_expiries() -> str:
    """zset: request keys, scored by when their seats expire; one of `turns`."""
    return turns()[1]


def line() -> list[str]:
    """Return the keys of the queue in the order in which the scripts expect them."""
    return [queue(), entries(), grants(), *queue_sums(), *turns()]


def credits_of(worker_key: str) -> str:
    """Ledger (hash, see ledger.lua): prompt tokens that are bound to a worker and not yet computed."""
    return f"{_PREFIX}:credits:{worker_key}"


def leases_of(worker_key: str) -> str:
    """Ledger (hash, see ledger.lua): the KV blocks promised on a decode worker."""
    return f"{_PREFIX}:leases:{worker_key}"


_PREFIXES = {Tier.POOL: "prefixes", Tier.HOST: "host_prefixes", Tier.DISK: "disk_prefixes"}


def prefixes_of(worker_key: str, tier: Tier = Tier.POOL) -> str:
    """set: hashes of the blocks in a tier of a worker, by default its pool's prefix cache."""
    return f"{_PREFIX}:{_PREFIXES[tier]}:{worker_key}"


def shares() -> list[str]:
    """zsets: active tenants by counter and by when they become idle; idle tenants by counter (shares.lua)."""
    return [f"{_PREFIX}:tenants:{part}" for part in ("counters", "expiries", "debts")]


def durable_clock() -> str:
    """hash: `seen` and `jumped` of the clock by which durable keys end (see clock.lua)."""
    return durable("clock")


def charge_of(request: str) -> str:
    """string: what a request was charged to its tenant's counter (see shares.lua)."""
    return f"{_PREFIX}:charge:{request}"


def budget_of(tenant: str) -> str:
    """hash: what is left of a tenant's budget (see budget.lua)."""
    return f"{_PREFIX}:budget:{tenant}"


def receipt_of(tenant: str, request: str) -> str:
    """hash: what a request has paid of its tenant's budget (see budget.lua)."""
    return f"{_PREFIX}:receipt:{len(tenant)}:{tenant}:{request}"


def demand() -> str:
    """hash: from a place in a ring to `slot number number ...`, what was asked in a slot of time."""
    return f"{_PREFIX}:demand"


def router_channel(router_id: str) -> str:
    """pub/sub: grants for the sessions of one router."""
    return f"{_PREFIX}:router:{router_id}"


def nudge_channel() -> str:
    """pub/sub: capacity has been released for which requests wait."""
    return f"{_PREFIX}:nudge"


def cancel_channel() -> str:
    """pub/sub: generations to end, wherever they run."""
    return f"{_PREFIX}:cancel"


def durable(*parts: str) -> str:
    """Return a key of what gateways keep for their callers; see `durable`. Parts may hold a `:`."""
    return ":".join((_DURABLE, *(part.replace("%", "%25").replace(":", "%3A") for part in parts)))
