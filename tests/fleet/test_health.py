"""Every service answers the standard health check and reflection, as container platforms ask for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no annotations
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]  # ships no annotations

from baton.fleet import FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import until
from tests.fleets import DEMO_MODEL
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

STANDARD = {
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}
INFERENCE, OPERATORS = "baton.v1.InferenceService", "baton.operators.v1.FleetService"
SERVES = {
    "router-0": {INFERENCE, OPERATORS, "externalscaler.ExternalScaler"},
    "prefill-0": {"baton.worker.v1.WorkerService", "baton.worker.v1.KVTransferService"},
    "decode-0": {"baton.worker.v1.WorkerService", "baton.worker.v1.KVTransferService"},
}
Status = health_pb2.HealthCheckResponse


def command(address: str) -> int:
    """The exit code of `baton health`."""
    run = [sys.executable, "-m", "baton.cli", "health", address, "--timeout-s", f"{PATIENCE_S:g}"]
    return subprocess.run(run, check=False, stdout=subprocess.DEVNULL).returncode


async def status(address: str, service: str = "") -> str:
    """Return the health of one service, or the status code that the call failed with."""
    async with grpc.aio.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        try:
            answer = await check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return str(Status.ServingStatus.Name(answer.status))


def says(address: str, wanted: str, service: str = "") -> Callable[[], Awaitable[bool]]:
    """A condition to wait for: a router does not serve while a starved worker counts as lost."""

    async def condition() -> bool:
        return await status(address, service) == wanted

    return condition


def exits(address: str, wanted: int) -> Callable[[], Awaitable[bool]]:
    async def condition() -> bool:
        return await asyncio.to_thread(command, address) == wanted

    return condition


async def heard(watch: Any, wanted: int) -> None:
    """Read what a watch of health says until it is this."""
    async with asyncio.timeout(PATIENCE_S):
        while (await watch.read()).status != wanted:
            pass


async def reflected(address: str, version: str, **question: str) -> Any:
    """The answer of server reflection in one of its versions; its messages are the same in both."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(reflection_pb2.ServerReflectionRequest(**question))
        answer = await call.read()
        call.cancel()
        return answer


async def described(address: str, version: str, service: str) -> set[str]:
    """The services of the files that describe a service."""
    answer = await reflected(address, version, file_containing_symbol=service)
    files = map(
        descriptor_pb2.FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto
    )
    return {f"{file.package}.{entry.name}" for file in files for entry in file.service}


async def test_every_service_is_healthy_and_says_what_it_serves(
    tmp_path: Path, make_fleet: MakeFleet
) -> None:
    async with make_fleet(FleetSpec(model=DEMO_MODEL, timed="demo-cpu", run_dir=tmp_path)) as fleet:
        for name, own in SERVES.items():
            address = fleet.process(name).address
            await until(says(address, "SERVING"), f"{name} serves")
            await until(exits(address, 0), f"{name} is healthy")
            for service in own | STANDARD:
                await until(says(address, "SERVING", service), f"{name} serves {service}")
            assert await status(address, "no.such.Service") == "NOT_FOUND"
            for version in ("v1", "v1alpha"):
                answer = await reflected(address, version, list_services="")
                listed = {entry.name for entry in answer.list_services_response.service}
                assert listed == own | STANDARD, (name, version)
                for service in listed:
                    assert service in await described(address, version, service), (name, version, service)
        address = fleet.process("decode-0").address
        fleet.process("decode-0").kill()
        await fleet.process("decode-0").wait()
        assert await asyncio.to_thread(command, address) != 0


async def test_a_router_serves_only_while_a_request_could_run(tmp_path: Path, make_fleet: MakeFleet) -> None:
    async with make_fleet(FleetSpec(model=DEMO_MODEL, timed="demo-cpu", run_dir=tmp_path)) as fleet:
        address = fleet.process("router-0").address
        await until(says(address, "SERVING"), "the router serves")
        async with grpc.aio.insecure_channel(address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(service=INFERENCE)
            )
            await heard(watch, Status.SERVING)
            fleet.process("decode-0").kill()
            await heard(watch, Status.NOT_SERVING)
            await until(says(address, "NOT_SERVING"), "the router has lost its worker")
            assert await status(address, OPERATORS) == "SERVING"
            assert await asyncio.to_thread(command, address) != 0
            await fleet.revive("decode-0")
            await heard(watch, Status.SERVING)
            fleet.process("prefill-0").kill()  # a decode worker computes prompts as well
            fleet.process("redis").kill()
            await heard(watch, Status.NOT_SERVING)
            watch.cancel()


async def test_a_router_without_redis_serves_if_it_may(tmp_path: Path, make_fleet: MakeFleet) -> None:
    spec = FleetSpec(
        model=DEMO_MODEL, timed="demo-cpu", prefill=0, placement="aggregated", run_dir=tmp_path,
        without_redis="local",
    )  # fmt: skip
    async with make_fleet(spec) as fleet:
        address = fleet.process("router-0").address
        await until(says(address, "SERVING"), "the router serves")
        async with grpc.aio.insecure_channel(address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            await heard(watch, Status.SERVING)
            fleet.process("redis").kill()
            await fleet.process("redis").wait()
            fleet.process("decode-0").terminate()  # the next word is about this, not about Redis
            assert (await watch.read()).status == Status.NOT_SERVING
            watch.cancel()
