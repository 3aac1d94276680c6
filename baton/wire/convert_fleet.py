"""Convert the operators' messages to the types of the SDK."""

from __future__ import annotations

from baton.operators.v1 import fleet_pb2
from baton.snapshots import (
    CostState,
    FleetCounters,
    FleetSnapshot,
    QueueState,
    Role,
    StartingState,
    WorkerState,
)
from baton.wire.convert import by_number, from_pb
from baton.worker.v1 import worker_pb2

_ROLES = by_number(worker_pb2.WorkerRole, "WORKER_ROLE", Role)


def snapshot_from_pb(snapshot: fleet_pb2.WatchResponse) -> FleetSnapshot:
    return from_pb(
        FleetSnapshot,
        snapshot,
        queue=from_pb(QueueState, snapshot.queue),
        workers=tuple(_worker_from_pb(worker) for worker in snapshot.workers),
        counters=from_pb(FleetCounters, snapshot.counters),
        starting=tuple(
            from_pb(StartingState, worker, role=_ROLES.get(worker.role)) for worker in snapshot.starting
        ),
    )


def _worker_from_pb(worker: fleet_pb2.WorkerStatus) -> WorkerState:
    load = worker.load
    return from_pb(
        WorkerState,
        worker,
        role=_ROLES.get(worker.role),
        draining=load.draining,
        step=load.step,
        running=load.running,
        waiting=load.waiting,
        pending_prefill_tokens=load.pending_prefill_tokens,
        context_tokens=load.context_tokens,
        free_blocks=load.free_blocks,
        cached_blocks=load.cached_blocks,
        cost=from_pb(CostState, worker.cost_model) if worker.HasField("cost_model") else None,
    )
