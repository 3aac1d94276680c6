"""`baton health`: for container health checks, so it imports nothing slow."""

from __future__ import annotations

import argparse

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no annotations

from baton.cli.exits import FAILED, OK, UNREACHABLE, explain
from baton.cli.target import target_of
from baton.errors import Unavailable
from baton.errors.reachability import Blocked, explained
from baton.security.credentials import Credentials


async def run(args: argparse.Namespace) -> int:
    target = target_of(args)
    return max([await _check(address, target.credentials, args.timeout_s) for address in target.addresses])


async def _check(address: str, credentials: Credentials, timeout_s: float) -> int:
    async with credentials.channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            request = health_pb2.HealthCheckRequest()
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            print(await _failure(error, address, credentials))
            return UNREACHABLE
    print(f"{address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}")
    return OK if answer.status == health_pb2.HealthCheckResponse.SERVING else FAILED


async def _failure(error: grpc.aio.AioRpcError, address: str, credentials: Credentials) -> str:
    message = f"{error.code().name}: {error.details()}"
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return f"{address}: {message}"
    found = await explained(Unavailable(message, address), credentials=credentials)
    return explain(found) if isinstance(found, Blocked) else str(found)
