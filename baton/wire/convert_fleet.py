"""From the operators' messages to the SDK's types."""

from __future__ import annotations

from baton.operators.v1 import fleet_pb2
from baton.snapshots import (
    CostState,
    FleetCounters,
    FleetFacts,
    FleetSnapshot,
    QueueState,
    Role,
    StartingState,
    WorkerState,
)
from baton.worker.v1 import worker_pb2

_ROLES = {
    worker_pb2.WORKER_ROLE_PREFILL: Role.PREFILL,
    worker_pb2.WORKER_ROLE_DECODE: Role.DECODE,
}


def facts_from_pb(facts: fleet_pb2.DescribeResponse) -> FleetFacts:
    return FleetFacts(
        model_name=facts.model_name,
        architecture=facts.architecture,
        fingerprint=facts.fingerprint,
        block_size=facts.block_size,
        max_context_tokens=facts.max_context_tokens,
        placement=facts.placement,
        version=facts.version,
        deterministic=facts.deterministic,
    )


def snapshot_from_pb(snapshot: fleet_pb2.WatchResponse) -> FleetSnapshot:
    return FleetSnapshot(
        router_id=snapshot.router_id,
        uptime_s=snapshot.uptime_s,
        queue=_queue_from_pb(snapshot.queue),
        workers=tuple(_worker_from_pb(worker) for worker in snapshot.workers),
        counters=_counters_from_pb(snapshot.counters),
        starting=tuple(_starting_from_pb(one) for one in snapshot.starting),
    )


def _starting_from_pb(starting: fleet_pb2.StartingWorker) -> StartingState:
    return StartingState(
        worker_id=starting.worker_id,
        role=_ROLES.get(starting.role),
        phase=starting.phase,
        done=starting.done,
        total=starting.total,
        silent_s=starting.silent_s,
    )


def _queue_from_pb(queue: fleet_pb2.QueueStatus) -> QueueState:
    return QueueState(
        waiting=queue.waiting,
        waiting_tokens=queue.waiting_tokens,
        capacity=queue.capacity,
        running_sessions=queue.running_sessions,
        redis_reachable=queue.redis_reachable,
    )


def _counters_from_pb(counters: fleet_pb2.Counters) -> FleetCounters:
    return FleetCounters(
        accepted=counters.accepted,
        refused=counters.refused,
        finished=counters.finished,
        failed=counters.failed,
        cancelled=counters.cancelled,
        relayed_tokens=counters.relayed_tokens,
        retried_attempts=counters.retried_attempts,
        ttft_promises_kept=counters.ttft_promises_kept,
        ttft_promises_broken=counters.ttft_promises_broken,
    )


def _worker_from_pb(worker: fleet_pb2.WorkerStatus) -> WorkerState:
    load = worker.load
    return WorkerState(
        worker_id=worker.worker_id,
        incarnation=worker.incarnation,
        address=worker.address,
        role=_ROLES.get(worker.role),
        connected=worker.connected,
        draining=load.draining,
        step=load.step,
        running=load.running,
        waiting=load.waiting,
        pending_prefill_tokens=load.pending_prefill_tokens,
        context_tokens=load.context_tokens,
        num_blocks=worker.num_blocks,
        free_blocks=load.free_blocks,
        cached_blocks=load.cached_blocks,
        leased_blocks=worker.leased_blocks,
        step_seconds=worker.step_seconds,
        cost=_cost_from_pb(worker.cost_model) if worker.HasField("cost_model") else None,
    )


def _cost_from_pb(cost: worker_pb2.CostModel) -> CostState:
    return CostState(
        is_trusted=cost.is_trusted,
        coefficients=tuple(cost.coefficients),
        knee_tokens=cost.knee_tokens,
        ratio_q10=cost.ratio_q10,
        ratio_q50=cost.ratio_q50,
        ratio_q95=cost.ratio_q95,
    )
