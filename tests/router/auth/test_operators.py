"""Operators prove themselves by a key or by their certificate; KEDA has only the certificate."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from baton.keda.v1 import externalscaler_pb2 as pb
from baton.keda.v1 import externalscaler_pb2_grpc
from baton.operators.v1 import fleet_pb2, fleet_pb2_grpc
from baton.security.auth_file import add_key, new_api_key
from baton.security.certificates import make_certificates
from baton.security.secret_files import Certificates
from router.api.auth_interceptor import AuthInterceptor
from router.api.error_interceptor import ErrorInterceptor
from router.api.fleet_service import FleetService
from router.api.scaler_service import ScalerService
from router.auth.auth import Auth
from router.core.core import RouterCore
from router.core.model.state import CoreConfig
from router.intake.model_facts import ModelFacts
from router.links.metrics import RouterMetrics
from router.links.shell import Shell
from runtime.state.store import Store

pytestmark = pytest.mark.integration

OPERATOR, TENANT = new_api_key(), new_api_key()
PREFILL = pb.ScaledObjectRef(scalerMetadata={"role": "prefill"})


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "certificates", ["localhost"], 1, dt.datetime.now(dt.UTC))


@pytest.fixture
async def address(made: Certificates, store: Store, facts: ModelFacts, tmp_path: Path) -> AsyncIterator[str]:
    """A locked router that demands its clients' certificates."""
    door = tmp_path / "door.json"
    add_key(door, OPERATOR, "ops", operator=True)
    add_key(door, TENANT, "acme")
    shell = Shell(RouterCore(CoreConfig("router-a")), store, RouterMetrics(), facts.name)
    guards = (ErrorInterceptor(lambda _: None), AuthInterceptor(Auth(door, store), lambda _: None))
    server = grpc.aio.server(interceptors=guards)
    ScalerService(shell).add_to(server)
    FleetService(shell, facts).add_to(server)
    pair = made.key("router").read_bytes(), made.cert("router").read_bytes()
    credentials = grpc.ssl_server_credentials([pair], made.ca.read_bytes(), require_client_auth=True)
    port = server.add_secure_port("localhost:0", credentials)
    await server.start()
    yield f"localhost:{port}"
    await server.stop(grace=None)


def channel(made: Certificates, address: str, part: str) -> grpc.aio.Channel:
    key, cert = made.key(part).read_bytes(), made.cert(part).read_bytes()
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(made.ca.read_bytes(), key, cert))


async def codes(made: Certificates, address: str, part: str, api_key: str | None) -> set[grpc.StatusCode]:
    """Return how each call for operators ends."""
    metadata = (("authorization", f"Bearer {api_key}"),) if api_key is not None else ()
    async with channel(made, address, part) as opened:
        scaler = externalscaler_pb2_grpc.ExternalScalerStub(opened)
        fleet = fleet_pb2_grpc.FleetServiceStub(opened)
        calls = (
            scaler.GetMetricSpec(PREFILL, metadata=metadata),
            scaler.IsActive(PREFILL, metadata=metadata),
            scaler.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=PREFILL), metadata=metadata),
            fleet.Describe(fleet_pb2.DescribeRequest(), metadata=metadata),
        )
        found = {await call.code() for call in calls}
        stream = scaler.StreamIsActive(PREFILL, metadata=metadata)
        try:
            await stream.read()
        except grpc.aio.AioRpcError as error:
            found.add(error.code())
        else:
            stream.cancel()
            found.add(grpc.StatusCode.OK)
        return found


@pytest.mark.parametrize(
    ("part", "api_key", "code"),
    [
        ("operator", None, grpc.StatusCode.OK),
        ("client", OPERATOR, grpc.StatusCode.OK),
        ("client", None, grpc.StatusCode.UNAUTHENTICATED),
        ("worker", None, grpc.StatusCode.UNAUTHENTICATED),
        ("client", TENANT, grpc.StatusCode.PERMISSION_DENIED),
        ("operator", TENANT, grpc.StatusCode.PERMISSION_DENIED),
        ("operator", "baton_wrong", grpc.StatusCode.UNAUTHENTICATED),
    ],
    # Keys are drawn anew in each process, and cases must have the same names in all.
    ids=[
        "operator",
        "client, operator's key",
        "client",
        "worker",
        "client, tenant's key",
        "operator, tenant's key",
        "operator, wrong key",
    ],
)
async def test_only_operators_ask_how_many_workers_are_needed(
    made: Certificates, address: str, part: str, api_key: str | None, code: grpc.StatusCode
) -> None:
    assert await codes(made, address, part, api_key) == {code}
