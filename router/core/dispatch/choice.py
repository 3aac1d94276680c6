"""Chooses workers: which free capacity is offered to the queue, and which decode worker a group gets."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from router.core.capacity.fleet import Fleet, Worker
from router.core.capacity.fleet_capacity import FleetCapacity
from router.core.capacity.worker_facts import DECODE
from router.core.session.session import Group
from scheduling.admission.learnt import Learnt
from scheduling.admission.prediction import RequestCost, decode_step_s, own_prefill_s
from scheduling.placement import (
    DecodeCandidate,
    DecodeChoice,
    PathCandidate,
    choose_conditional,
    choose_decode_worker,
)
from scheduling.policies.policy import Policy
from state.records import DecodeRoom

UNLIMITED = 10**12
"""More tokens, blocks or seats than any worker has."""
CROWDED = 0.8
"""Share of its seats from which a decode worker's prompts keep others from getting a seat."""
HANDOFF_S = 0.002
"""Time of two workers together: to offer, fetch and check what the steps do not hide."""


@dataclass(frozen=True, slots=True)
class WorkerChoice:
    """All that workers are chosen by."""

    policy: Policy
    fleet: Fleet
    capacity: FleetCapacity
    learnt: Learnt

    # Workers that compute the prompt

    def least_work(self) -> Worker | None:
        """Return the worker with the least work that may be asked, for policies that bind at arrival."""
        workers = [worker for worker in self.fleet.computing if not worker.asking]
        if not workers:
            return None
        return min(workers, key=_outstanding if workers[0].facts.role == DECODE else _bound)

    def soonest(self, head: Group, free: Sequence[Worker], count: int, now: float) -> list[Worker]:
        """Return the `count` free workers from which the head's first token would come first."""
        avoided = head.avoided
        if not avoided and not head.session.prefix_hits:
            return heapq.nsmallest(count, free, key=_bound)
        if not head.session.prefix_hits:
            return heapq.nsmallest(count, free, key=lambda worker: (worker.key in avoided, *_bound(worker)))
        waits_s = {lane.key: lane.wait_s for lane in self.capacity.lanes(now)}

        def first_token(worker: Worker) -> tuple[bool, float, int, str]:
            first_token_s = waits_s[worker.key] + self._own_s(head, worker, now)
            return worker.key in avoided, first_token_s, worker.leased_blocks, worker.key

        return heapq.nsmallest(count, free, key=first_token)

    def best_paths(self, head: Group, free: Sequence[Worker], count: int, now: float) -> list[Worker]:
        """Return at most `count` free workers to offer to the queue, the best first.

        All computing workers are compared (`choose_conditional`), and where the best one left is not free,
        waiting for it is better than what is free. A head that is late is offered all the same: waiting makes
        it no earlier.
        """
        waits_s = {lane.key: lane.wait_s for lane in self.capacity.lanes(now)}
        candidates = {
            worker.key: self._path(head, worker, waits_s[worker.key], now) for worker in self.fleet.computing
        }
        by_key = {worker.key: worker for worker in free}
        chosen: list[Worker] = []
        while candidates and len(chosen) < count:
            best = choose_conditional(list(candidates.values()))
            if best is None or best.worker_key not in by_key:
                break
            if best.crowds and self.fleet.prefilling:
                break
            chosen.append(by_key[best.worker_key])
            del candidates[best.worker_key]
        return chosen

    def _path(self, group: Group, worker: Worker, wait_s: float, now: float) -> PathCandidate:
        slo, session = group.session.aim, group.session
        own_s = self._own_s(group, worker, now)
        ttft_s = self.learnt.late_ttft_s(wait_s, own_s, now)
        meets = slo.ttft_ms is None or (now - session.timeline.received_at + ttft_s) * 1000 <= slo.ttft_ms
        if worker.facts.role != DECODE:
            return PathCandidate(worker.key, ttft_s, own_s + HANDOFF_S, meets)
        view = self.capacity.decode_view(worker, now)
        limit = self.capacity.seat_limit(worker, slo.pace_ms, now)
        num_seqs = worker.num_seqs + group.num_seqs
        worker_s = own_s
        if view.num_seqs:
            # What the prompt adds to steps that run for the decodes anyway.
            steps = -(-group.work_tokens // self.capacity.chunk(worker, now))
            worker_s = max(0.0, own_s - steps * decode_step_s(view, view.num_seqs))
        return PathCandidate(
            worker_key=worker.key,
            ttft_s=ttft_s,
            worker_s=worker_s,
            meets=meets,
            crowds=num_seqs > CROWDED * limit or worker.free_blocks < group.blocks,
            within_share=worker.prefill_share <= self.fleet.roles.weight(worker.key),
        )

    def _own_s(self, group: Group, worker: Worker, now: float) -> float:
        cached = group.session.prefix_hits.get(worker.key, 0) * self.fleet.block_size
        cost = RequestCost(group.work_tokens, cached, group.blocks, group.num_seqs)
        return own_prefill_s(cost, self.capacity.prefill_speed(worker.key, now))

    # Decode workers

    def decoder(self, group: Group, prefill: Worker, now: float) -> DecodeChoice | None:
        """Return the decode worker for a group whose prompt `prefill` computes, if any has room."""
        workers = self._decoders_for(prefill)
        if self.policy.binds_at_arrival:
            least = min(workers, key=_outstanding, default=None)
            return DecodeChoice(least.key, (), "least outstanding work") if least else None
        return choose_decode_worker([self._decoder(group, worker, now) for worker in workers], group.blocks)

    def _decoder(self, group: Group, worker: Worker, now: float) -> DecodeCandidate:
        pace_ms, num_seqs = group.session.aim.pace_ms, worker.num_seqs
        view = self.capacity.decode_view(worker, now)
        return DecodeCandidate(
            key=worker.key,
            draining=worker.draining,
            avoided=worker.key in group.avoided,
            free_blocks=worker.free_blocks,
            free_seqs=self.capacity.seat_limit(worker, pace_ms, now) - num_seqs,
            step_after_s=decode_step_s(view, num_seqs + group.num_seqs),
            tightest_tpot_s=worker.tightest_pace_s(pace_ms),
            cached_blocks=group.session.prefix_hits.get(worker.key, 0),
        )

    def _decoders_for(self, prefill: Worker) -> tuple[Worker, ...]:
        """Return where a prompt that `prefill` computes can decode."""
        return (prefill,) if prefill.facts.role == DECODE else self.fleet.decoding

    def rooms(self, prefill: Worker, pace_ms: int | None, now: float) -> tuple[DecodeRoom, ...]:
        """Return the rooms where a prompt that `prefill` computes can decode."""
        return tuple(self.room(worker, pace_ms, now) for worker in self._decoders_for(prefill))

    def room(self, worker: Worker, pace_ms: int | None, now: float) -> DecodeRoom:
        """Return a decode worker's capacity, as far as promises allow it to be used."""
        if self.policy.binds_at_arrival:
            return DecodeRoom(worker.key, UNLIMITED, UNLIMITED)
        return DecodeRoom(worker.key, worker.facts.num_blocks, self.capacity.seat_limit(worker, pace_ms, now))

    def has_room(self, group: Group, worker: Worker, now: float) -> bool:
        """Return True if a group could go on at a worker at once."""
        seats = self.capacity.seat_limit(worker, group.session.aim.pace_ms, now) - worker.num_seqs
        return worker.free_blocks >= group.blocks and seats >= group.num_seqs and not worker.preempted


def _outstanding(worker: Worker) -> tuple[int, int, str]:
    """Order by blocks that a worker's requests will hold, then by prompt tokens, then by key."""
    return worker.leased_blocks, worker.bound_tokens, worker.key


def _bound(worker: Worker) -> tuple[int, int, str]:
    """Order by prompt work; among equals, such as idle workers, by how few share the worker's steps."""
    return worker.bound_tokens, worker.leased_blocks, worker.key
