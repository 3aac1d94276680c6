"""The work that is done ten times a second while there are requests."""

from __future__ import annotations

from router.core.actions import AskQueue, Renew
from router.core.capacity.fleet import Fleet
from router.core.dispatch.drain import clear
from router.core.dispatch.migrate import migrate, preempt_seat
from router.core.outage import serve_stranded
from router.core.queue.queue import enqueue, leave_queue, most_blocks, strand
from router.core.session import finish
from router.core.session.arrive import take_up_awaiting
from router.core.session.recover import give_up, has_failed_too_often
from router.core.session.session import Group
from router.core.state import RouterState
from scheduling.placement import Placement
from scheduling.request import FinishReason
from scheduling.roles import MixedLoad, Roles, rebalance

RENEW_S = 1.0
ASK_AGAIN_S = 1.0
"""A place in the queue is asked for again after this long: a grant that got lost took the place with it."""
MOST_ASKED_AGAIN = 20
"""Places asked for again at a time: the more groups wait, the less often each of them asks."""


class Chores:
    """Looks after groups that no event would bring on."""

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self._renewed_at = -RENEW_S
        self._fitted_to = 0
        """The version of the fleet that all waiting groups were last seen to fit into."""

    def run(self) -> None:
        """Do everything that is due."""
        state = self._state
        state.plan_wanted = True
        take_up_awaiting(state)
        for group in list(state.stranded.values()):
            if group.key in state.stranded:
                self._help(group)
        if not state.store_reachable:
            serve_stranded(state)
        for group in state.waiting.take_unconfirmed(state.now, ASK_AGAIN_S, MOST_ASKED_AGAIN):
            enqueue(state, group)
        self._strand_unfit()
        for worker in list(state.fleet.workers.values()):
            if worker.draining:
                clear(state, worker)
            elif worker.preempted:
                migrate(state, worker)
        preempt_seat(state)
        self._renew()
        if not state.store_reachable:
            state.actions.append(AskQueue())
        state.offer_due = True

    def _help(self, group: Group) -> None:
        """Bring a stranded group on its way, or give it up when no worker has come for it."""
        state = self._state
        if group.stranded_at is not None and not self._fits(group):
            if state.now - group.stranded_at > state.config.no_worker_grace_s:
                error = "no decode worker that could run it came back"
                finish.cut_off(state, group.session, FinishReason.FAILED, error)
        elif state.now < group.rests_until:
            return
        elif has_failed_too_often(group):
            give_up(state, group)
        elif state.store_reachable:
            enqueue(state, group)

    def _strand_unfit(self) -> None:
        """Strand groups that wait for a worker that is gone, so that they do not wait for ever."""
        state = self._state
        if self._fitted_to == state.fleet.version:
            return
        self._fitted_to = state.fleet.version
        for group in list(state.waiting):
            if group.session.admitted and not self._fits(group):
                leave_queue(state, group)
                strand(state, group)

    def _fits(self, group: Group) -> bool:
        """Return True if some decode worker that takes new work could hold a group."""
        fleet, session = self._state.fleet, group.session
        pool = fleet.largest_pool_with(session.adapter)
        return most_blocks(session, group.num_seqs, fleet.block_size) <= pool

    def _renew(self) -> None:
        """Renew credits and leases once a second, and move the role weights.

        Without anything to renew, the weights are looked at with each of the chores.
        """
        state = self._state
        if state.now - self._renewed_at < RENEW_S:
            return
        groups = state.groups.values()
        credit_holds = tuple((group.key, group.credit_on) for group in groups if group.credit_on is not None)
        lease_holds = tuple((group.key, group.lease_on) for group in groups if group.lease_on is not None)
        if credit_holds or lease_holds:
            self._renewed_at = state.now
            state.actions.append(Renew(credit_holds, lease_holds))
        if state.fleet.placement is Placement.CONDITIONAL:
            state.fleet.roles = _rebalanced(state.fleet, state.now)


def _rebalanced(fleet: Fleet, now: float) -> Roles:
    """Return the fleet's role weights, moved if the fleet has been out of balance for long."""
    mixed = [
        MixedLoad(worker.key, _share(worker.prefill_share), _share(worker.decode_share))
        for worker in fleet.decoding
    ]
    dedicated = [_share(worker.prefill_share) for worker in fleet.prefilling]
    return rebalance(fleet.roles, mixed, dedicated, now)


def _share(average: float) -> float:
    """Return the average within 0 and 1: sums of roundings may leave that range slightly."""
    return min(1.0, max(0.0, average))
