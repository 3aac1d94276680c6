"""Queue, shares, grants, credits and leases of a fleet without Redis, on any clock.

The operations are those of `runtime.state.store.Store`. Results are those of its Lua scripts: tests compare
both side by side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from runtime.state.errors import QueueFull
from runtime.state.records import (
    ABANDONED_MS,
    CLASS_SCORE,
    GRANT_TTL_MS,
    MAX_GRANTS_LOST,
    MOST_FORGOTTEN,
    MOST_PASSED,
    SILENT_MS,
    DecodeRoom,
    Grant,
    Hold,
    LostHolds,
    Notice,
    Nudge,
    PrefillRoom,
    QueueEntry,
    QueuePlace,
    QueueStatus,
    Settled,
    Settlement,
)
from scheduling.admission.backlog import Place, WaitingLine
from scheduling.admission.shares import SeatTurns, Standing, TokenCounters
from sim.store.ledger import Ledger

Hear = Callable[[Notice], None]


@dataclass(slots=True, eq=False)
class _Entry:
    place: Place
    slo_class: int
    tokens: int
    blocks: int
    router_id: str
    adapter: str
    seats: int
    share: int
    takes_turns: bool
    grants_lost: int = 0
    worker_key: str = ""
    """The worker on which it holds a credit while it is granted."""


class MemoryStore:
    """A fleet's state. `clock` gives seconds and never runs backwards."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._line = WaitingLine()
        self._entries: dict[str, _Entry] = {}
        self._grants: dict[str, int] = {}
        """Expiry by request key, soonest first: all grants last equally long."""
        self._granted_tokens = 0
        self._credits: defaultdict[str, Ledger] = defaultdict(Ledger)
        self._leases: defaultdict[str, Ledger] = defaultdict(Ledger)
        self._tenants = TokenCounters()
        self._turns = SeatTurns()
        self._ears: dict[str, list[Hear]] = {}
        self._called: dict[str, int] = {}
        """When each router last asked for a place or for grants."""

    def _now(self) -> int:
        return int(self._clock() * 1000)

    # Queue

    def enqueue(self, entry: QueueEntry, capacity: int) -> QueuePlace:
        """Put a request in its place; raise `QueueFull` if `capacity` others wait."""
        now, key = self._now(), entry.request_key
        self._return_expired(now)
        self._forget_abandoned(now)
        self._called[entry.router_id] = now
        if key in self._grants:
            return QueuePlace(0, 0)
        score = entry.slo_class * CLASS_SCORE + now + entry.due_in_ms
        waiting = self._entries.get(key)
        if waiting is not None:
            if waiting.slo_class == entry.slo_class:
                score = min(score, waiting.place[0])
            self._leave_line(waiting)
        elif len(self._line) >= capacity:
            raise QueueFull(capacity)
        place = (score, key)
        made = self._entries[key] = _Entry(
            place=place,
            slo_class=entry.slo_class,
            tokens=entry.work_tokens,
            blocks=entry.blocks,
            router_id=entry.router_id,
            adapter=entry.adapter,
            seats=entry.seats,
            share=entry.share,
            takes_turns=entry.takes_turns,
        )
        self._join_line(made)
        return QueuePlace(*self._line.ahead_of(place))

    def dequeue(self, request_key: str) -> bool:
        """Remove a waiting or granted request; return False if it was neither."""
        self._return_expired(self._now())
        entry = self._entries.get(request_key)
        if entry is None:
            return False
        if request_key in self._grants:
            self._forget_grant(entry)
        else:
            self._leave_line(entry)
        del self._entries[request_key]
        return True

    def queue_status(self) -> QueueStatus:
        """Return the number of waiting requests, and the work of these and of the granted ones."""
        now = self._now()
        self._return_expired(now)
        self._forget_abandoned(now)
        return QueueStatus(len(self._line), self._line.tokens + self._granted_tokens)

    def _forget_abandoned(self, now: int) -> None:
        """Forget the first places while their routers have asked for nothing for long, some at each call."""
        for _ in range(MOST_FORGOTTEN):
            head = self._line.head
            if head is None:
                return
            entry = self._entries[head[1]]
            if now - self._called.get(entry.router_id, now) <= ABANDONED_MS:
                return
            self._leave_line(entry)
            del self._entries[head[1]]

    def _return_expired(self, now: int) -> None:
        """Give requests whose grants were not settled their places back, a few times."""
        while self._grants:
            key, expiry = next(iter(self._grants.items()))
            if expiry > now:
                return
            entry = self._entries[key]
            self._forget_grant(entry)
            if entry.grants_lost < MAX_GRANTS_LOST:
                entry.grants_lost += 1
                self._put_back(entry)
            else:
                del self._entries[key]

    def _forget_grant(self, entry: _Entry) -> None:
        del self._grants[entry.place[1]]
        self._granted_tokens -= entry.tokens

    def _put_back(self, entry: _Entry) -> None:
        entry.worker_key = ""
        self._join_line(entry)

    def _join_line(self, entry: _Entry) -> None:
        self._line.add(entry.place, entry.tokens)
        self._turns.join(_class_of(entry.place), entry.place, takes_turns=entry.takes_turns)

    def _leave_line(self, entry: _Entry) -> None:
        self._line.remove(entry.place)
        self._turns.leave(_class_of(entry.place), entry.place, takes_turns=entry.takes_turns)

    # Tenants' shares

    def charge_tenant(
        self, tenant: str, tokens: float, lead: float, band: float = math.inf, request: str = ""
    ) -> Standing:
        """Charge a request's virtual tokens to its tenant, unless the tenant is ahead by more than `lead`.

        A request with a name is charged once.
        """
        return self._tenants.charge(tenant, tokens, lead, self._now(), band, request)

    def refund_tenant(self, tenant: str, tokens: float, request: str = "") -> None:
        """Take back the charge of a request that was not admitted in the end; once, if it has a name."""
        self._tenants.refund(tenant, tokens, self._now(), request)

    # Grants, credits and leases

    def grant(self, caller: str, worker: PrefillRoom, decoders: Sequence[DecodeRoom]) -> list[Grant]:
        """Give the worker's free capacity to the heads of the queue that some decode worker has room for.

        Where the head takes turns, the tenant with the fewest seats has the turn.

        Room is held there for as long as the grant is out. Returns the grants of `caller`'s own sessions;
        those of other routers reach them as notices.
        """
        now = self._now()
        self._return_expired(now)
        self._called[caller] = now
        self._turns.purge(now)
        bound = self._credits[worker.key].purge(now)
        granted = []
        left = worker.max_grants
        while left > 0 and _takes_more(worker, bound) and (head := self._head_for(worker)) is not None:
            entry = self._entries[head[1]]
            decode_key = self._find_room(_with(decoders, entry.adapter), head[1], entry, now)
            if decode_key is None:
                break
            self._leave_line(entry)
            grant = Grant(head[1], entry.router_id, worker.key, decode_key)
            if not self._tell(grant, caller, now):
                del self._entries[head[1]]
                continue
            left -= 1
            entry.worker_key = worker.key
            self._grants[head[1]] = now + GRANT_TTL_MS
            self._granted_tokens += entry.tokens
            bound.put(head[1], entry.tokens, now + GRANT_TTL_MS)
            self._leases[decode_key].put_at_least(head[1], entry.blocks, now + GRANT_TTL_MS, entry.seats)
            self._turns.take(head[1], entry.share, now + GRANT_TTL_MS)
            if entry.router_id == caller:
                granted.append(grant)
        return granted

    def _head_for(self, worker: PrefillRoom) -> Place | None:
        """Return the place that has the turn among those that the worker has the adapter for."""
        first = self._first_for(worker)
        if first is None or not self._entries[first[1]].takes_turns:
            return first

        def has_adapter(place: Place) -> bool:
            return _has(worker.adapters, self._entries[place[1]].adapter)

        return self._turns.next(_class_of(first), MOST_PASSED, has_adapter) or first

    def _first_for(self, worker: PrefillRoom) -> Place | None:
        """Return the first place that the worker has the adapter for, if there is one near the head."""
        head = self._line.head
        if head is None or _has(worker.adapters, self._entries[head[1]].adapter):
            return head
        near = self._line.first(MOST_PASSED)
        return next((place for place in near if _has(worker.adapters, self._entries[place[1]].adapter)), None)

    def _find_room(
        self, decoders: Sequence[DecodeRoom], request_key: str, entry: _Entry, now: int
    ) -> str | None:
        for room in decoders:
            leases = self._leases[room.key].purge(now)
            if leases.has_room(request_key, entry.blocks, room.num_blocks, entry.seats, room.max_seqs):
                return room.key
        return None

    def _tell(self, grant: Grant, caller: str, now: int) -> bool:
        """Send a grant to its router; return False if the router is gone or stalled, and needs no grants."""
        if grant.router_id == caller:
            return True
        if now - self._called.get(grant.router_id, now) > SILENT_MS:
            return False
        ears = self._ears.get(grant.router_id, [])
        for hear in ears:
            hear(grant)
        return bool(ears)

    def settle(
        self, request_key: str, prefill_key: str, decoders: Sequence[DecodeRoom], ttl_s: float
    ) -> Settlement:
        """Turn a grant into a lease of the entry's blocks on the first of `decoders` that has room.

        The one that the grant holds room on must be among them: nothing stays held on the others.
        """
        now = self._now()
        self._return_expired(now)
        self._turns.purge(now)
        bound = self._credits[prefill_key].purge(now)
        leases = {room.key: self._leases[room.key].purge(now) for room in decoders}
        entry, expiry = self._entries.get(request_key), now + round(ttl_s * 1000)
        if entry is None:
            return self._settled_before(request_key, bound, leases, expiry)
        if entry.worker_key not in ("", prefill_key):
            return Settlement(Settled.EXPIRED)
        decode_key = None
        if entry.worker_key:
            self._forget_grant(entry)
            decode_key = self._find_room(decoders, request_key, entry, now)
        for ledger in (bound, *leases.values()):
            ledger.drop(request_key)
        if decode_key is not None:
            del self._entries[request_key]
            leases[decode_key].put(request_key, entry.blocks, expiry, entry.seats)
            bound.put(request_key, entry.tokens, expiry)
            self._turns.take(request_key, entry.share, expiry)
            return Settlement(Settled.OK, decode_key)
        self._turns.drop(request_key)
        if not entry.worker_key:  # it waits again
            return Settlement(Settled.EXPIRED)
        self._put_back(entry)
        return Settlement(Settled.NO_ROOM)

    def _settled_before(
        self, request_key: str, bound: Ledger, leases: Mapping[str, Ledger], expiry: int
    ) -> Settlement:
        for decode_key, ledger in leases.items():
            if request_key in ledger and request_key in bound:
                ledger.put_at_least(request_key, 0, expiry)
                bound.put_at_least(request_key, 0, expiry)
                self._turns.keep(request_key, expiry)
                return Settlement(Settled.OK, decode_key)
        return Settlement(Settled.EXPIRED)

    def lease_at_once(
        self, entry: QueueEntry, worker: PrefillRoom, decoder: DecodeRoom, ttl_s: float
    ) -> bool:
        """Lease a newcomer's blocks without a place in the queue, if nothing waits there and both have room.

        Return True if it holds what a settled grant holds, else False; then it holds nothing.
        """
        now, key = self._now(), entry.request_key
        if len(self._line) or any(expiry <= now for expiry in self._grants.values()):
            return False
        bound, leases = self._credits[worker.key].purge(now), self._leases[decoder.key].purge(now)
        if not _takes_more(worker, bound):
            return False
        if not leases.has_room(key, entry.blocks, decoder.num_blocks, entry.seats, decoder.max_seqs):
            return False
        self._called[entry.router_id] = now
        expiry = now + round(ttl_s * 1000)
        leases.put(key, entry.blocks, expiry, entry.seats)
        bound.put(key, entry.work_tokens, expiry)
        self._turns.take(key, entry.share, expiry)
        return True

    def release_credit(self, request_key: str, prefill_key: str) -> bool:
        """Release a credit when the prompt is computed or the attempt over; return False if none was held."""
        return self._release(self._credits[prefill_key], request_key)

    def release_lease(self, request_key: str, decode_key: str) -> bool:
        """Release a lease when the request has ended there; return False if none was held."""
        held = self._leases[decode_key].purge(self._now())
        self._turns.drop(request_key)
        return self._release(held, request_key)

    def _release(self, ledger: Ledger, request_key: str) -> bool:
        held = ledger.purge(self._now()).drop(request_key)
        if held and len(self._line):
            for ears in self._ears.values():
                for hear in ears:
                    hear(Nudge())
        return held

    def renew(
        self,
        credits_held: Iterable[tuple[str, str]],
        leases_held: Iterable[tuple[str, str]],
        ttl_s: float,
    ) -> LostHolds:
        """Keep `(request_key, worker_key)` credits and leases from expiring; return those not held."""
        now = self._now()
        expiry = now + round(ttl_s * 1000)
        self._turns.purge(now)
        lost_credits, lost_leases = [], []
        for request_key, worker_key in credits_held:
            if not self._credits[worker_key].purge(now).keep(request_key, expiry):
                lost_credits.append((request_key, worker_key))
        for request_key, worker_key in leases_held:
            if self._leases[worker_key].purge(now).keep(request_key, expiry):
                self._turns.keep(request_key, expiry)
            else:
                lost_leases.append((request_key, worker_key))
        return LostHolds(tuple(sorted(lost_credits)), tuple(sorted(lost_leases)))

    def take_holds(self, credits_held: Iterable[Hold], leases_held: Iterable[Hold], ttl_s: float) -> None:
        """Enter credits and leases again that are no longer held."""
        now = self._now()
        expiry = now + round(ttl_s * 1000)
        self._turns.purge(now)
        for held, ledgers in ((credits_held, self._credits), (leases_held, self._leases)):
            for entry in held:
                ledger = ledgers[entry.worker_key].purge(now)
                if entry.request_key not in ledger:
                    ledger.put(entry.request_key, entry.amount, expiry, entry.seats)
                    if ledgers is self._leases:
                        self._turns.take(entry.request_key, entry.share, expiry)

    def leases(self, worker_key: str) -> dict[str, int]:
        """Return the blocks leased on a decode worker, by request."""
        return self._leases[worker_key].purge(self._now()).amounts()

    def credits(self, worker_key: str) -> dict[str, int]:
        """Return the prompt tokens bound to a worker, by request."""
        return self._credits[worker_key].purge(self._now()).amounts()

    # Notices

    def subscribe(self, router_id: str, hear: Hear) -> Callable[[], None]:
        """Subscribe to grants for this router's sessions and to returned capacity; the result unsubscribes.

        `hear` is called in the middle of an operation: it may take a note, and must not call the store.
        """
        self._ears.setdefault(router_id, []).append(hear)
        return lambda: self._unsubscribe(router_id, hear)

    def _unsubscribe(self, router_id: str, hear: Hear) -> None:
        ears = self._ears[router_id]
        ears.remove(hear)
        if not ears:
            del self._ears[router_id]


def _class_of(place: Place) -> int:
    return place[0] // CLASS_SCORE


def _takes_more(worker: PrefillRoom, bound: Ledger) -> bool:
    return bound.total < worker.limit_tokens or bound.seats < worker.min_prompts


def _has(adapters: Sequence[str], adapter: str) -> bool:
    return not adapter or adapter in adapters


def _with(rooms: Sequence[DecodeRoom], adapter: str) -> Sequence[DecodeRoom]:
    return [room for room in rooms if _has(room.adapters, adapter)] if adapter else rooms
