"""Which way our head goes: over a prefill worker, or with a decode worker alone (`choose_conditional`)."""

from __future__ import annotations

from router.book import Book
from router.fleet import DECODE, PREFILL, Worker
from router.sessions import Group
from scheduling.placement import Path, PathCandidate, choose_conditional
from scheduling.prediction import Ask, decode_step_s, mixed_step_s, own_prefill_s

CROWDED = 0.8
"""Share of its seats from which a decode worker's prompts keep others from getting one."""
HANDOFF_S = 0.002
"""Of two workers' time: offering, fetching and checking what the steps do not hide."""


def first_token_s(book: Book, group: Group, worker: Worker) -> float:
    """Until the first token would come from a worker, its cached prefix counted."""
    return _wait_s(book, worker) + _own_s(book, group, worker)


def _wait_s(book: Book, worker: Worker) -> float:
    """For the prompts bound to it; half of the step that runs comes first."""
    view, chunk = book.outlook.prefill_view(worker), book.outlook.chunk(worker)
    steps = worker.bound_tokens / chunk + (0.5 if worker.bound_tokens or view.num_decodes else 0.0)
    return steps * mixed_step_s(view, chunk)


def _own_s(book: Book, group: Group, worker: Worker) -> float:
    cached = group.session.prefix_hits.get(worker.key, 0) * book.fleet.block_size
    ask = Ask(group.work_tokens, cached, group.blocks, group.num_seqs)
    return own_prefill_s(ask, book.outlook.prefill_view(worker))


def best_paths(book: Book, free: list[Worker]) -> list[Worker]:
    """The workers that our waiting should be offered to, best first, one for each that waits.

    All computing workers are compared, and where the best one left is not free, waiting for it is better than
    what is free. A head that is late is offered all the same: waiting makes it no earlier.
    """
    head = book.waiting.head
    assert head is not None, "somebody waits"
    candidates = {worker.key: _candidate(book, head, worker) for worker in book.fleet.computing}
    capacity = book.outlook.capacity(head.session.slo.pace_ms)
    load = min(1.0, book.learnt.admitted.rate(book.now) / capacity.prefill_rate)
    by_key = {worker.key: worker for worker in free}
    chosen: list[Worker] = []
    while candidates and len(chosen) < len(book.waiting):
        best = choose_conditional(list(candidates.values()), load)
        if best is None or best.candidate.prefill_key not in by_key:
            break
        if best.candidate.harms and book.fleet.open(PREFILL):
            break
        chosen.append(by_key[best.candidate.prefill_key])
        del candidates[best.candidate.prefill_key]
    return chosen


def _candidate(book: Book, group: Group, worker: Worker) -> PathCandidate:
    slo, session = group.session.slo, group.session
    own_s = _own_s(book, group, worker)
    ttft_s = _wait_s(book, worker) + own_s
    _, q90 = book.learnt.ttft.quantiles(worker.bound_tokens, book.now)
    late_s = book.now - session.timeline.received_at + ttft_s * q90
    meets = slo.ttft_ms is None or late_s * 1000 <= slo.ttft_ms
    if worker.facts.role != DECODE:
        worker_s = own_s + HANDOFF_S
        return PathCandidate(Path.DISAGGREGATED, worker.key, "", ttft_s * q90, worker_s, meets)
    view = book.outlook.decode_view(worker)
    limit, num_seqs = book.outlook.seat_limit(worker, slo.pace_ms), worker.num_seqs + group.num_seqs
    return PathCandidate(
        path=Path.AGGREGATED,
        prefill_key=worker.key,
        decode_key=worker.key,
        ttft_s=ttft_s * q90,
        worker_s=_added_s(book, own_s, group, worker) if view.num_seqs else own_s,
        meets=meets,
        harms=num_seqs > CROWDED * limit or worker.free_blocks < group.blocks,
        within_share=worker.prefill_share <= book.roles.weight(worker.key),
    )


def _added_s(book: Book, own_s: float, group: Group, worker: Worker) -> float:
    """What the prompt adds to steps that run for the decodes anyway."""
    steps = -(-group.work_tokens // book.outlook.chunk(worker))
    view = book.outlook.decode_view(worker)
    return max(0.0, own_s - steps * decode_step_s(view, view.num_seqs))
