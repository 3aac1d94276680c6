"""`baton health`: for container health checks, so without anything that takes long to import."""

from __future__ import annotations

import argparse
import asyncio

import grpc
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # ships no annotations

from baton.cli.arguments import credentials_of
from baton.cli.exits import FAILED, OK, UNREACHABLE
from baton.credentials import Credentials


def run(args: argparse.Namespace) -> int:
    return asyncio.run(_check(args.address, credentials_of(args), args.timeout_s))


async def _check(address: str, credentials: Credentials, timeout_s: float) -> int:
    async with credentials.channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = await check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            print(f"{address}: {error.code().name}: {error.details()}")
            return UNREACHABLE
    print(f"{address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}")
    return OK if answer.status == health_pb2.HealthCheckResponse.SERVING else FAILED
