"""Which waiting requests give up their SLO so that most are in time: at an arrival, and by the full plan.

Only those at risk, whose callers would rather have them late than refused; and others when capacity died.

The full plan is made at most `PLANS_PER_S` times a second, the less often the more wait, and only while some
may be put behind. It judges by the early quantile of what was learnt: who could still be in time stays.
"""

from __future__ import annotations

from dataclasses import replace

from router.core.actions import PromiseBroken, RequestShed
from router.core.admission.promising import Judgement, judge
from router.core.queue.queueing import enqueue, put_behind
from router.core.session.session import Group, Phase
from router.core.state import TTFT_SCALE, Book
from scheduling.admission.admission import Verdict
from scheduling.admission.prediction import Ahead, Ask
from scheduling.admission.shedding import Plan, Service, plan
from scheduling.request import SloClass

PLANS_PER_S = 20.0
PLANNED_PER_S = 20_000
"""The most requests to plan in a second: with more than 1000 waiting, plans are made less often."""
EARLIEST = 0.1
"""Of what was predicted: nothing is taken to be quicker."""
BROKEN_LATER_S = 600.0
"""What was given up is served after what can still be in time."""


def make_room(book: Book, group: Group, ask: Ask, ahead: Ahead) -> Judgement | None:
    """Put the class's largest request at risk behind, if the smaller newcomer can then be accepted."""
    victim = book.waiting.largest_at_risk(group.session.slo.slo_class)
    if victim is None or victim.work_tokens <= group.work_tokens or victim.phase is not Phase.WAITING:
        return None
    if victim.due_at <= group.due_at:
        ahead = Ahead(max(0, ahead.tokens - victim.work_tokens), max(0, ahead.requests - 1))
    book.waiting.remove(victim)
    judgement = judge(book, ask, group.session.slo, group.due_at, ahead, group.session.prefix_hits)
    book.waiting.add(victim, book.now)
    if judgement.decision.verdict is not Verdict.ACCEPTED:
        return None
    _shed(book, victim)
    return judgement


def plan_if_due(book: Book) -> None:
    """Make the full plan, if it is wanted, could put any behind, and was not made just now."""
    least_s = max(1 / PLANS_PER_S, len(book.waiting) / PLANNED_PER_S)
    if not book.plan_wanted or book.now - book.planned_at < least_s:
        return
    book.plan_wanted = False
    if not book.config.policy.promises or not book.fleet.serves():
        return
    if not book.waiting.has_at_risk and not (book.capacity_died and book.waiting):
        book.capacity_died = False
        return
    book.planned_at = book.now
    _carry_out(book, full_plan(book))


def full_plan(book: Book) -> Plan:
    """The plan for all groups of this router that wait."""
    capacity = book.outlook.capacity(None)
    wait_s = book.fleet.bound_tokens / capacity.prefill_rate
    q10, _ = book.learnt.ttft.quantiles(wait_s * TTFT_SCALE, book.now)
    service = Service(
        now=book.now,
        rate=capacity.prefill_rate / max(EARLIEST, q10),
        num_workers=capacity.num_computing,
        start_tokens=book.fleet.bound_tokens,
    )
    return plan(book.waiting.entries, service, may_break=book.capacity_died)


def _carry_out(book: Book, made: Plan) -> None:
    for key in made.shed:
        if book.groups[key].phase is Phase.WAITING:
            _shed(book, book.groups[key])
    for key in made.broken:
        group = book.groups[key]
        book.counters.promises_given_up += 1
        book.do(PromiseBroken(key))
        if group.phase is Phase.WAITING:
            put_behind(book, group, BROKEN_LATER_S)
    if not made.broken:
        book.capacity_died = False


def _shed(book: Book, group: Group) -> None:
    """Give up a request's TTFT: from now on it waits like a request that asked for none."""
    session = group.session
    assert session.decision is not None, "who is at risk was told so"
    book.promise(session, session.decision, replace(session.aim, ttft_ms=None))
    put_behind(book, group, 0.0)
    book.counters.shed += 1
    book.do(RequestShed(group.key))


def pay_batch(book: Book, slo_class: SloClass, tokens: int) -> None:
    """Prompt tokens went to a worker; when batch is owed a whole prompt, its first goes before everybody."""
    head = book.waiting.head_of(SloClass.BATCH)
    floor = book.batch_floor
    floor.dispatched(slo_class, tokens, batch_waits=head is not None)
    is_due = head is not None and head.work_tokens <= floor.owed_tokens
    if head is not None and is_due and head.phase is Phase.WAITING and not head.is_promoted:
        head.is_promoted = True
        enqueue(book, head)
