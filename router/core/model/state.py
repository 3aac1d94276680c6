"""All that the core knows, and the actions it has decided on so far.

`RouterState` is data alone, which belongs to the handlers of events. Functions keep what belongs together:
`dispatch` the phases of groups and what they hold, `arrive` and `finish` the names of sessions and their
calls.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import count

from router.core.model.actions import Action, Dequeue, ReleaseCredit, ReleaseLease
from router.core.model.fleet import Fleet, FleetCapacity
from router.core.model.session import Group, Move, Session
from router.core.model.waiting import WaitingGroups
from runtime.state.records import QueueStatus
from scheduling.admission.learnt import BatchFloor, Learnt
from scheduling.admission.shares import TenantSums, TenantWeights
from scheduling.placement import Placement
from scheduling.policies.policy import Policy
from scheduling.policies.slack import SLACK

EVEN = TenantWeights()


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """The settings of one core."""

    router_id: str
    policy: Policy = SLACK
    placement: Placement = Placement.DISAGGREGATED
    queue_capacity: int = 1024
    retention_s: float = 60.0
    max_retained: int = 1024
    weights: TenantWeights = EVEN
    serves_without_store: bool = False
    """While the store is away, newcomers are served by what this router alone knows; otherwise refused."""
    no_worker_grace_s: float = 30.0
    """How long to wait for a decode worker that was lost; no flag sets it. It bounds two waits:

    - an admitted group that no connected worker could hold, from when it is stranded (`core.py`)
    - a newcomer that finds no decode worker at all, from when the last one was lost (`admit.py`)
    """
    router_incarnation: str = ""
    """The router's process, drawn at its start. Workers remember what an earlier process under the same id
    numbered, and the store may still execute its calls. Without one, names in the store are not unique."""

    @property
    def caller(self) -> str:
        """The router's name in the store. An earlier process under the same id has another one: what it left
        in the queue is nobody's, and is not granted to this one.
        """
        return f"{self.router_id}~{self.router_incarnation}" if self.router_incarnation else self.router_id


@dataclass(slots=True)
class Counters:
    """Counts since the router started: the message `Counters` of `fleet.proto`."""

    accepted: int = 0
    refused: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    relayed_tokens: int = 0
    retried_attempts: int = 0
    ttft_promises_kept: int = 0
    ttft_promises_broken: int = 0
    handed_over: int = 0


class RouterState:
    """Sessions, groups and workers under every name they are looked up by."""

    def __init__(self, config: CoreConfig) -> None:  # noqa: PLR0915 -- a table of what there is
        self.config = config
        self.now = 0.0
        self.actions: list[Action] = []
        self.counters = Counters()

        # Sessions and groups
        self.live: dict[tuple[str, str], Session] = {}
        self.by_sid: dict[int, Session] = {}
        self.by_listener: dict[int, Session] = {}
        self.retained: OrderedDict[tuple[str, str], Session] = OrderedDict()
        """Sessions that have ended, oldest first."""
        self.awaiting: dict[int, Session] = {}
        """Sessions without groups that wait for a decode worker to come back, in order of arrival, by sid."""
        self.lacking_logprobs: set[int] = set()
        """Sessions, by sid, whose prompt log-probabilities are requested and have not all arrived."""
        self.groups: dict[str, Group] = {}
        """By name in the store."""
        self.waiting = WaitingGroups()
        self.stranded: dict[str, Group] = {}
        self.without_source: dict[str, Group] = {}
        """Running groups whose source has left in order, and whose decode worker has not begun."""
        self.moves: dict[str, Move] = {}
        """The moves away from draining workers, by group key."""

        # Workers, and the decisions about them
        self.fleet = Fleet(config.placement)
        self.learnt = Learnt()
        self.capacity = FleetCapacity(config.policy, self.fleet, self.learnt.tpot)
        self.batch_floor = BatchFloor()
        self.served_at = float("-inf")
        """When a decode worker that takes new work was last connected."""
        self.seat_taken_at = float("-inf")
        """When a running group last lost its seat to another group."""
        self.running_shares = TenantSums()
        """The count of running groups' seats, by tenant."""

        # The store
        self.queue = QueueStatus(0, 0)
        self.store_reachable = True
        self.to_dequeue: dict[str, Dequeue] = {}
        """Places in the queue of groups that ended while the store was away; no more than the queue has."""
        self.to_release: dict[ReleaseCredit | ReleaseLease, None] = {}
        """An ordered set: releases that the store missed while it was away."""

        # What is due after this event
        self.offer_due = False
        """Capacity came free, or something new waits for it: offer free capacity to the queue."""
        self.queue_stands = False
        """A newcomer was turned away for what waits in the store's queue, and none asked for grants since."""
        self.plan_wanted = False
        self.planned_at = float("-inf")
        self.capacity_died = False
        """A worker has gone, or takes nothing new, since a plan last kept every promise."""
        self.leaving = False

        self.sids = count(1)
        """Names of sessions within this router."""
        self.names = count(1)
        """Numbers in the names that groups have in the store."""
        self.handles = count(1)
        """Names of attempts of groups on every stream of this router."""
