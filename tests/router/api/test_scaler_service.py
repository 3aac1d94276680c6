"""KEDA's calls over real gRPC: either of two routers answers for the whole fleet."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from baton.keda.v1 import externalscaler_pb2 as pb
from baton.keda.v1 import externalscaler_pb2_grpc
from baton.v1 import generation_pb2
from router.api import scaler_service
from router.api.error_interceptor import ErrorInterceptor
from router.api.scaler_service import ScalerService
from router.core.core import RouterCore
from router.core.model.state import CoreConfig
from router.links.metrics import RouterMetrics
from router.links.shell import Shell
from runtime.state import store as store_module
from scheduling.scaling import demand
from tests.patience import PATIENCE_S
from tests.router.calls import details_of, events_of, request
from tests.router.conftest import RunningFleet, until

pytestmark = pytest.mark.integration

SLOT_S = 0.5


@pytest.fixture(autouse=True)
def short_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots are soon over; the arithmetic on them is tested elsewhere."""
    monkeypatch.setattr(store_module, "SLOT_S", SLOT_S)


def asked(role: str = "prefill", **more: str) -> pb.ScaledObjectRef:
    return pb.ScaledObjectRef(
        name="baton", namespace="default", scalerMetadata={"role": role, "scalerAddress": "r:50051", **more}
    )


async def needed(scaler: externalscaler_pb2_grpc.ExternalScalerAsyncStub, role: str) -> int:
    spec = await scaler.GetMetricSpec(asked(role))
    [metric] = spec.metricSpecs
    assert (metric.metricName, metric.targetSize, metric.targetSizeFloat) == (f"baton-{role}-workers", 1, 1)
    ask = pb.GetMetricsRequest(scaledObjectRef=asked(role), metricName=metric.metricName)
    [found] = (await scaler.GetMetrics(ask)).metricValues
    assert (found.metricName, found.metricValueFloat) == (metric.metricName, found.metricValue)
    return found.metricValue


async def test_either_router_knows_what_was_asked_of_the_other(fleet: RunningFleet) -> None:
    await fleet.pair(step_s=0.01)
    # A second router on the same Redis and workers, which no client calls.
    other = Shell(RouterCore(CoreConfig("router-b")), fleet.store, RouterMetrics(), "model")
    server = grpc.aio.server(interceptors=(ErrorInterceptor(lambda error: None),))
    ScalerService(other).add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    running = asyncio.create_task(other.run())
    async with (
        grpc.aio.insecure_channel(fleet.address) as here,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as there,
    ):
        routers = [externalscaler_pb2_grpc.ExternalScalerStub(channel) for channel in (here, there)]
        await until(lambda: len(other.core.state.fleet.workers) == 2)
        for scaler in routers:
            assert [await needed(scaler, role) for role in ("prefill", "decode")] == [0, 0]
            assert not (await scaler.IsActive(asked())).result
        sampling = generation_pb2.SamplingParams(n=3)
        await events_of(fleet.inference.Generate(request(4, sampling=sampling)))
        for scaler in routers:

            async def is_known(scaler: externalscaler_pb2_grpc.ExternalScalerAsyncStub = scaler) -> bool:
                return [await needed(scaler, role) for role in ("prefill", "decode")] == [1, 1]

            await until(is_known)
            assert (await scaler.IsActive(asked())).result
        [slot] = [slot for slot in await other.store.demand() if slot != demand.EMPTY]
        assert (slot.prompts, slot.prompt_tokens, slot.sequences) == (1, 5, 3)
    await server.stop(grace=None)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_first_request_to_an_idle_fleet_is_pushed(fleet: RunningFleet) -> None:
    await fleet.pair()
    async with grpc.aio.insecure_channel(fleet.address) as channel, asyncio.timeout(PATIENCE_S):
        scaler = externalscaler_pb2_grpc.ExternalScalerStub(channel)
        stream = scaler.StreamIsActive(asked())
        first = await stream.read()
        assert isinstance(first, pb.IsActiveResponse)
        assert not first.result
        sent = asyncio.create_task(events_of(fleet.inference.Generate(request(3))))
        then = await stream.read()
        assert isinstance(then, pb.IsActiveResponse)
        assert then.result
        await sent
        stream.cancel()


async def test_a_stream_to_an_idle_fleet_leaves_nothing_behind(
    fleet: RunningFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaler_service, "SLOT_S", 0.01)
    await fleet.pair()
    num_looks, demand_of = 0, fleet.store.demand

    async def counted() -> list[demand.Slot]:
        nonlocal num_looks
        num_looks += 1
        return await demand_of()

    monkeypatch.setattr(fleet.store, "demand", counted)
    async with grpc.aio.insecure_channel(fleet.address) as channel:
        stream = externalscaler_pb2_grpc.ExternalScalerStub(channel).StreamIsActive(asked())
        await until(lambda: num_looks > 2)
        before = len(asyncio.all_tasks())
        await until(lambda: num_looks > 30)
        assert len(asyncio.all_tasks()) < before + 10
        stream.cancel()


async def test_a_fleet_without_workers_starts_with_one_of_each_role(
    fleet: RunningFleet,
) -> None:
    async with grpc.aio.insecure_channel(fleet.address) as channel:
        scaler = externalscaler_pb2_grpc.ExternalScalerStub(channel)
        sent = fleet.inference.Generate(request(3))
        events = asyncio.create_task(events_of(sent))

        async def is_wanted() -> bool:
            return await needed(scaler, "prefill") == await needed(scaler, "decode") == 1

        await until(is_wanted)
        sent.cancel()
        await asyncio.gather(events, return_exceptions=True)


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({}, "scalerMetadata.role"),
        ({"role": "router"}, "scalerMetadata.role"),
        ({"role": "decode", "goodput": "all"}, "scalerMetadata.goodput"),
        ({"role": "decode", "goodput": "1"}, "scalerMetadata.goodput"),
        ({"role": "decode", "goodput": "nan"}, "scalerMetadata.goodput"),
        ({"role": "decode", "goodPut": "0.9"}, "scalerMetadata"),
    ],
)
async def test_wrong_metadata_is_refused_by_its_name(
    fleet: RunningFleet, metadata: dict[str, str], field: str
) -> None:
    reference = pb.ScaledObjectRef(scalerMetadata=metadata)
    async with grpc.aio.insecure_channel(fleet.address) as channel:
        scaler = externalscaler_pb2_grpc.ExternalScalerStub(channel)
        for call in (
            scaler.IsActive(reference),
            scaler.GetMetricSpec(reference),
            scaler.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=reference)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            [violation] = details_of(caught.value)["google.rpc.BadRequest"].field_violations
            assert violation.field == field
            assert "accepted" in str(caught.value.details())


def test_the_contract_is_kedas_on_the_wire() -> None:
    # Names, numbers and types as KEDA 2 publishes them: a change here breaks every KEDA.
    service = pb.DESCRIPTOR.services_by_name["ExternalScaler"]
    assert service.full_name == "externalscaler.ExternalScaler"
    methods = {
        method.name: (method.input_type.name, method.output_type.name, method.server_streaming)
        for method in service.methods
    }
    assert methods == {
        "IsActive": ("ScaledObjectRef", "IsActiveResponse", False),
        "StreamIsActive": ("ScaledObjectRef", "IsActiveResponse", True),
        "GetMetricSpec": ("ScaledObjectRef", "GetMetricSpecResponse", False),
        "GetMetrics": ("GetMetricsRequest", "GetMetricsResponse", False),
    }
    sent = pb.GetMetricsResponse(
        metricValues=[pb.MetricValue(metricName="m", metricValue=2, metricValueFloat=2.0)]
    )
    assert sent.SerializeToString().hex() == "0a0e0a016d1002190000000000000040"
    spec = pb.MetricSpec(metricName="m", targetSize=1, targetSizeFloat=1.0)
    assert spec.SerializeToString().hex() == "0a016d100119000000000000f03f"
    reference = pb.ScaledObjectRef(name="a", namespace="b", scalerMetadata={"c": "d"})
    assert reference.SerializeToString().hex() == "0a0161120162" + "1a060a0163120164"
    assert (
        pb.GetMetricsRequest(scaledObjectRef=reference, metricName="m").SerializeToString()[:2] == b"\n\x0e"
    )
