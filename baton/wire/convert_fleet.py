"""Convert the operators' messages to the types of the SDK."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from google.protobuf.message import Message

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
    return FleetFacts(**_values(FleetFacts, facts))


def snapshot_from_pb(snapshot: fleet_pb2.WatchResponse) -> FleetSnapshot:
    return FleetSnapshot(
        router_id=snapshot.router_id,
        uptime_s=snapshot.uptime_s,
        queue=QueueState(**_values(QueueState, snapshot.queue)),
        workers=tuple(_worker_from_pb(worker) for worker in snapshot.workers),
        counters=FleetCounters(**_values(FleetCounters, snapshot.counters)),
        starting=tuple(_starting_from_pb(worker) for worker in snapshot.starting),
    )


def _values(kind: type, message: Message) -> dict[str, Any]:
    """Return the values of a message that has the same fields as the dataclass `kind`."""
    return {field.name: getattr(message, field.name) for field in fields(kind)}


def _starting_from_pb(starting: fleet_pb2.StartingWorker) -> StartingState:
    return StartingState(**{**_values(StartingState, starting), "role": _ROLES.get(starting.role)})


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
    return CostState(**{**_values(CostState, cost), "coefficients": tuple(cost.coefficients)})
