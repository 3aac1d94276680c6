"""ExternalScaler: how many workers the fleet needs, as KEDA asks for it.

Every router answers for the whole fleet, since all routers add what is asked of them to the same slots in
Redis. Without Redis nothing is answered, and KEDA leaves the number of replicas as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

import grpc.aio

from baton.keda.v1 import externalscaler_pb2 as pb
from baton.keda.v1 import externalscaler_pb2_grpc
from router.core.model.events import DECODE, PREFILL
from router.errors import Reason, Unavailable, ValidationError
from router.links.shell import Shell
from runtime.rpc.handlers import Context
from runtime.state.errors import StoreUnavailable
from scheduling.scaling.demand import SLOT_S, Slot
from scheduling.scaling.need import Goal, decode_needed, is_idle, prefill_needed

ROLES = (PREFILL, DECODE)
_OF_KEDA = {
    "scalerAddress",
    "caCert",
    "tlsCertFile",
    "tlsClientCert",
    "tlsClientKey",
    "enableTLS",
    "unsafeSsl",
}
_ACCEPTED = ("role", "goodput")


class ScalerService(externalscaler_pb2_grpc.ExternalScalerServicer):
    """See `externalscaler.proto`."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def add_to(self, server: grpc.aio.Server) -> str:
        """Serve on `server`; returns the service's full name, for reflection."""
        externalscaler_pb2_grpc.add_ExternalScalerServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["ExternalScaler"].full_name

    async def IsActive(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        asked_of(request.scalerMetadata)
        return pb.IsActiveResponse(result=await self._is_active())

    async def StreamIsActive(  # type: ignore[override]  # grpc.aio also takes a coroutine that writes
        self, request: pb.ScaledObjectRef, context: Context
    ) -> None:
        asked_of(request.scalerMetadata)
        demand, told = self._shell.demand, None
        while True:
            demand.came.clear()
            is_active = await self._is_active()
            if is_active is not told:
                await context.write(pb.IsActiveResponse(result=is_active))
                told = is_active
            # Only the first request to an idle fleet is urgent; other routers' are seen within a slot.
            wakes = asyncio.sleep(SLOT_S) if is_active else demand.came.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SLOT_S):
                    await wakes

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Context) -> pb.GetMetricSpecResponse:
        role, _ = asked_of(request.scalerMetadata)
        spec = pb.MetricSpec(metricName=_metric(role), targetSize=1, targetSizeFloat=1.0)
        return pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        role, goal = asked_of(request.scaledObjectRef.scalerMetadata)
        workers = self._needed(role, goal, await self._slots())
        name = request.metricName or _metric(role)
        value = pb.MetricValue(metricName=name, metricValue=workers, metricValueFloat=workers)
        return pb.GetMetricsResponse(metricValues=[value])

    def _needed(self, role: str, goal: Goal, slots: Sequence[Slot]) -> int:
        fleet, models = self._shell.core.state.fleet, self._shell.demand.workers()
        if models is not None:
            prefill, decode = models
            if role == PREFILL:
                return prefill_needed(slots, prefill, fleet.placement, goal).workers
            return decode_needed(slots, decode, fleet.placement, goal).workers
        if fleet.workers:
            raise Unavailable(Reason.NO_WORKER, "no worker has measured what its steps cost yet")
        # One worker has to start before it is known how many are needed.
        return int(not is_idle(slots))

    async def _is_active(self) -> bool:
        if self._shell.demand.in_use:
            return True
        return not is_idle(await self._slots())

    async def _slots(self) -> list[Slot]:
        try:
            return await self._shell.store.demand()
        except StoreUnavailable as error:
            why = f"Redis, which holds the fleet's demand, does not answer: {error.reason}"
            raise Unavailable(Reason.REDIS_AWAY, why) from error


def _metric(role: str) -> str:
    return f"baton-{role}-workers"


def asked_of(metadata: Mapping[str, str]) -> tuple[str, Goal]:
    """Return the role and the goal of a trigger. Raises ValidationError."""
    unknown = sorted(set(metadata) - {*_ACCEPTED, *_OF_KEDA})
    if unknown:
        raise ValidationError("scalerMetadata", unknown[0], f"{', '.join(_ACCEPTED)}, and KEDA's own")
    role = metadata.get("role", "")
    if role not in ROLES:
        raise ValidationError("scalerMetadata.role", role, " or ".join(ROLES))
    if "goodput" not in metadata:
        return role, Goal()
    try:
        return role, Goal(float(metadata["goodput"]))
    except ValueError as error:
        accepted = str(error).partition("; accepted: ")[2] or "a number"
        raise ValidationError("scalerMetadata.goodput", metadata["goodput"], accepted) from None
