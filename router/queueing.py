"""Groups and their places in the fleet's queue, up to the block lease."""

from __future__ import annotations

from collections.abc import Sequence

from router.actions import AskGrants, Dequeue, Enqueue, ReleaseCredit, ReleaseLease, Settle
from router.book import Book
from router.fleet import DECODE, Worker
from router.promising import decode_view_of, seat_limit, tightest_tpot_s
from router.sessions import Choice, Group, Phase, Session
from scheduling.ordering import rank
from scheduling.placement import DecodeCandidate, DecodeChoice, Path, choose_decode_worker
from scheduling.prediction import decode_step_s
from scheduling.reservation import blocks_needed
from state.records import DecodeRoom, PrefillRoom, QueueEntry, Settled

UNLIMITED = 10**12
"""More tokens, blocks or seats than any worker has."""
STEPS_BOUND = 2
"""Steps' worth of prompts bound to a worker: what has entered an engine can no longer be reordered, but a
worker that runs dry while the next grant travels is idle."""


def group_blocks(book: Book, session: Session, num_choices: int) -> int:
    """KV blocks that many choices can grow to. Delivered tokens only moved from output to prompt."""
    block_size = next(iter(book.fleet.workers.values())).facts.block_size if book.fleet.workers else 1
    return blocks_needed(len(session.prompt_token_ids), session.stop.max_tokens, num_choices, block_size)


def new_groups(
    book: Book, session: Session, choices: Sequence[Choice], parent: Group | None = None
) -> list[Group]:
    """Groups of these choices: each that has output alone with it, all others together."""
    untouched = [choice for choice in choices if not choice.token_ids]
    parts = [[choice] for choice in choices if choice.token_ids] + ([untouched] if untouched else [])
    groups = []
    for part in parts:
        group = Group(
            key=session.group_key(part[0].index),
            session=session,
            choices=part,
            blocks=group_blocks(book, session, len(part)),
            work_tokens=len(session.prompt_token_ids) + len(part[0].token_ids),
            attempt=parent.attempt if parent else 0,
            avoided=parent.avoided if parent else frozenset(),
        )
        for choice in part:
            choice.group = group
        session.groups.append(group)
        book.groups[group.key] = group
        groups.append(group)
    return groups


def enqueue(book: Book, group: Group) -> None:
    """Ask for a place; a place it has already only moves. Whoever was delivered tokens goes first."""
    session = group.session
    if group.phase is not Phase.WAITING:
        group.phase = Phase.ENQUEUEING
    group.asked_at = book.now
    started = session.timeline.first_token_at is not None or session.number > 0
    waited_s = book.now - session.timeline.received_at
    slo_class, due_in_ms = rank(book.config.policy.order, session.slo, waited_s)
    entry = QueueEntry(
        request_key=group.key,
        router_id=book.config.router_id,
        slo_class=slo_class,
        due_in_ms=min(0, due_in_ms) if started else due_in_ms,
        work_tokens=group.work_tokens,
        blocks=group.blocks,
    )
    book.do(Enqueue(entry, book.config.queue_capacity))


def strand(book: Book, group: Group) -> None:
    """It is in no queue; the chores put it back."""
    group.phase = Phase.STRANDED
    if group.stranded_at is None:
        group.stranded_at = book.now


def on_granted(book: Book, request_key: str, worker_key: str) -> None:
    """Pick a decode worker and ask for its blocks."""
    group = book.groups.get(request_key)
    if group is None:
        # It ended while the grant was on its way.
        book.do(ReleaseCredit(request_key, worker_key))
    elif group.phase is Phase.ENQUEUEING:
        group.early_grant = worker_key
    elif group.phase is Phase.WAITING:
        take_grant(book, group, worker_key)


def take_grant(book: Book, group: Group, worker_key: str) -> None:
    """Turn a grant into a lease, or give it back."""
    worker = book.fleet.workers.get(worker_key)
    choice = None if worker is None or worker.draining else choose_decoder(book, group, worker)
    if choice is None:
        book.do(ReleaseCredit(group.key, worker_key))
        book.do(Dequeue(group.key))
        strand(book, group)
        return
    group.phase = Phase.SETTLING
    group.prefill_key, group.decode_key = worker_key, choice.worker_key
    decoder = book.fleet.workers[choice.worker_key]
    book.do(Settle(group.key, worker_key, decode_room(book, decoder, group)))


def choose_decoder(book: Book, group: Group, prefill: Worker) -> DecodeChoice | None:
    """The decode worker for a group whose prompt `prefill` computes."""
    workers = [prefill] if prefill.facts.role == DECODE else book.fleet.open(DECODE)
    if book.config.policy.binds_at_arrival:
        least = min(workers, key=_outstanding, default=None)
        return DecodeChoice(least.key, (), "least outstanding work") if least else None
    return choose_decode_worker([_candidate(book, group, worker) for worker in workers], group.blocks)


def _candidate(book: Book, group: Group, worker: Worker) -> DecodeCandidate:
    limit = seat_limit(book, worker, group.session.slo.tpot_ms)
    view = decode_view_of(book, worker, limit)
    return DecodeCandidate(
        key=worker.key,
        draining=worker.draining,
        avoided=worker.key in group.avoided,
        free_blocks=worker.free_blocks,
        free_seqs=limit - worker.num_seqs,
        step_after_s=decode_step_s(view, worker.num_seqs + group.num_seqs),
        tightest_tpot_s=tightest_tpot_s(worker, group.session.slo.tpot_ms),
        cached_blocks=group.session.prefix_hits.get(worker.key, 0),
    )


def decode_room(book: Book, worker: Worker, group: Group | None = None) -> DecodeRoom:
    """A worker's capacity, as far as promises allow it to be used."""
    if book.config.policy.binds_at_arrival:
        return DecodeRoom(worker.key, UNLIMITED, UNLIMITED)
    tpot_ms = group.session.slo.tpot_ms if group is not None else None
    return DecodeRoom(worker.key, worker.facts.num_blocks, seat_limit(book, worker, tpot_ms))


def _outstanding(worker: Worker) -> tuple[int, int, str]:
    """The shortest queue: blocks its requests will hold, then prompt tokens; ties go to the lower key."""
    return worker.leased_blocks, worker.bound_tokens, worker.key


def _bind(book: Book) -> None:
    """Give what has come to the worker with the least work, which queues it: no limit is kept to."""
    workers = [worker for worker in book.fleet.computing if not worker.asking]
    if not workers:
        return
    key = _outstanding if workers[0].facts.role == DECODE else _bound
    worker = min(workers, key=key)
    worker.asking = True
    book.do(AskGrants(PrefillRoom(worker.key, UNLIMITED), (DecodeRoom(worker.key, UNLIMITED, UNLIMITED),)))


def _bound(worker: Worker) -> tuple[int, int, str]:
    return worker.bound_tokens, worker.leased_blocks, worker.key


def ask_grants(book: Book) -> None:
    """Offer every worker's free capacity to the head of the queue, if anything of ours waits."""
    if book.config.policy.binds_at_arrival:
        if next(book.waiting(), None) is not None:
            _bind(book)
        return
    tpots = [group.session.slo.tpot_ms for group in book.waiting() if group.session.slo.tpot_ms is not None]
    if not tpots and next(book.waiting(), None) is None:
        return
    tightest = min(tpots, default=None)
    rooms = {
        worker.key: DecodeRoom(worker.key, worker.facts.num_blocks, seat_limit(book, worker, tightest))
        for worker in book.fleet.open(DECODE)
    }
    disaggregated = book.fleet.path is Path.DISAGGREGATED
    for worker in book.fleet.computing:
        limit = STEPS_BOUND * worker.facts.token_budget
        if worker.asking or worker.bound_tokens >= limit:
            continue
        worker.asking = True
        decoders = tuple(rooms.values()) if disaggregated else (rooms[worker.key],)
        book.do(AskGrants(PrefillRoom(worker.key, limit), decoders))


def on_settled(
    book: Book, request_key: str, prefill_key: str, decode_key: str, outcome: Settled
) -> Group | None:
    """The group that may be dispatched now, if the lease was made and is still wanted."""
    group = book.groups.get(request_key)
    if group is None or group.phase is not Phase.SETTLING:
        if outcome is Settled.OK:
            book.do(ReleaseCredit(request_key, prefill_key))
            book.do(ReleaseLease(request_key, decode_key))
        return None
    if outcome is Settled.OK:
        group.credit_on, group.lease_on = prefill_key, decode_key
        return group
    group.prefill_key = group.decode_key = None
    if outcome is Settled.NO_ROOM:
        group.phase = Phase.WAITING
        group.avoided |= {decode_key}
    else:
        enqueue(book, group)
    return None


def release(book: Book, group: Group) -> None:
    """Return what the group holds of the store, once."""
    release_credit(book, group)
    if group.lease_on is not None:
        book.do(ReleaseLease(group.key, group.lease_on))
        group.lease_on = None
        book.grants_wanted = True


def release_credit(book: Book, group: Group) -> None:
    """The prompt is computed, or the attempt over."""
    if group.credit_on is not None:
        book.do(ReleaseCredit(group.key, group.credit_on))
        group.credit_on = None
        book.grants_wanted = True
