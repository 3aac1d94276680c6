"""A core that is told events at one time, with two decode workers that compute prompts too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from router.core.admit import judge_quote
from router.core.core import RouterCore
from router.core.judge import Judgement
from router.core.model.actions import (
    Action,
    AskGrants,
    ChargeTenant,
    Dequeue,
    Enqueue,
    ReleaseCredit,
    ReleaseLease,
    SendDecode,
    Settle,
    TakeHolds,
)
from router.core.model.events import (
    Arrived,
    Enqueued,
    Event,
    Granted,
    GrantsAnswered,
    SettleAnswered,
    StoreCall,
    StoreFailed,
    WorkerFacts,
    WorkerJoined,
    WorkerLoad,
)
from router.core.model.state import CoreConfig
from router.request import Request
from runtime.state.records import Settled
from scheduling.admission.prefixes import NO_HITS, PrefixHits
from scheduling.cost_model import CostModel
from scheduling.placement import Placement
from scheduling.policies import by_name
from scheduling.prediction import QueueAhead, RequestCost
from scheduling.request import SamplingParams, Slo, StopRules

COST = CostModel((0.01, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)
ONE, TWO = (WorkerFacts(f"d{i}", "1", "decode", f"d{i}:1", "fp", 4, 64, 8, 64) for i in (1, 2))
ARRIVAL = Arrived(
    listener=1,
    request=Request(
        tenant="t",
        request_id="r1",
        session=0,
        digest=b"",
        prompt_token_ids=range(6),
        sampling=SamplingParams(),
        seed_given=True,
        stop=StopRules(max_tokens=50),
        slo=Slo(),
        received_at=1.0,
    ),
)


def core_of(
    policy: str, *workers: WorkerFacts, placement: Placement = Placement.AGGREGATED, cost: CostModel = COST
) -> RouterCore:
    """Its workers have joined."""
    core = RouterCore(CoreConfig("router-a", by_name(policy), placement))
    for facts in workers or (ONE, TWO):
        core.on(WorkerJoined(facts, WorkerLoad(free_blocks=facts.num_blocks), cost), 1.0)
    return core


def tell(core: RouterCore, *events: Event, now: float = 1.0) -> list[Action]:
    """Return the actions of all events together."""
    return [action for event in events for action in core.on(event, now)]


def judged(
    core: RouterCore,
    ask: RequestCost,
    slo: Slo,
    ahead: QueueAhead,
    now: float,
    hits: PrefixHits = NO_HITS,
) -> Judgement:
    """Return the judgement that a quote of this request is made on."""
    core.state.now = now
    _, judgement = judge_quote(core.state, ask, slo, ahead, hits)
    return judgement


def call(event: Arrived, **changes: Any) -> Arrived:
    """Return a call with changes, by name: to its listener, to its hits, or else to its request."""
    own = {name: changes.pop(name) for name in ("listener", "hits") if name in changes}
    return replace(event, request=replace(event.request, **changes), **own)


def arrive(core: RouterCore, number: int, event: Arrived = ARRIVAL, position: int = 0) -> list[Action]:
    """A request is queued behind so many, none of which has much to compute."""
    named = call(event, listener=number, request_id=f"r{number}")
    return tell(core, named, Enqueued(f"{event.request.tenant}/r{number}/0", position, 0))


def start(core: RouterCore, number: int, event: Arrived = ARRIVAL) -> tuple[str, int]:
    """Take a request in and dispatch it; returns its worker and handle."""
    asks = [action for action in arrive(core, number, event) if isinstance(action, AskGrants)]
    (send,) = grant(core, number, asks[0].worker.key)
    return send.worker_key, send.spec.handle


def grant(core: RouterCore, number: int, worker_key: str, now: float = 1.0) -> list[SendDecode]:
    """A worker's capacity is given to a request, and the lease made; what is sent to decode workers."""
    given = (Granted(f"t/r{number}/0", worker_key, worker_key), GrantsAnswered(worker_key))
    (settle,) = [action for action in tell(core, *given, now=now) if isinstance(action, Settle)]
    settled = SettleAnswered(settle.request_key, settle.prefill_key, settle.decoders[0].key, Settled.OK)
    return [action for action in tell(core, settled, now=now) if isinstance(action, SendDecode)]


def failure_of(call: Action) -> StoreFailed:
    """Return what a core hears of a call that fails because the store is away."""
    failed = StoreFailed(StoreCall.OTHER, "", "away")
    match call:
        case Enqueue(entry):
            failed = StoreFailed(StoreCall.ENQUEUE, entry.request_key, "away")
        case Dequeue(key, prefill_key, decode_keys):
            failed = StoreFailed(StoreCall.DEQUEUE, key, "away", prefill_key, decode_keys)
        case AskGrants(worker):
            failed = StoreFailed(StoreCall.GRANT, worker.key, "away")
        case Settle(key, prefill_key, decoders):
            decode_keys = tuple(room.key for room in decoders)
            failed = StoreFailed(StoreCall.SETTLE, key, "away", prefill_key, decode_keys)
        case ReleaseCredit(key, worker_key):
            failed = StoreFailed(StoreCall.RELEASE_CREDIT, key, "away", worker_key)
        case ReleaseLease(key, worker_key):
            failed = StoreFailed(StoreCall.RELEASE_LEASE, key, "away", worker_key)
        case TakeHolds():
            failed = StoreFailed(StoreCall.TAKE_HOLDS, "", "away")
        case ChargeTenant(key):
            failed = StoreFailed(StoreCall.CHARGE, key, "away")
    return failed
