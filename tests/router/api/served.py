"""Serve a router of a test at one more address."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import grpc.aio

from baton.v1 import inference_pb2_grpc
from router.api.auth_interceptor import AuthInterceptor
from router.api.error_interceptor import ErrorInterceptor
from router.api.service import InferenceService
from router.auth.auth import Auth
from router.intake.helpers.tokenizer_pool import TokenizerPool
from router.intake.model_facts import ModelFacts
from router.intake.preprocessor import Preprocessor
from router.limits import Limits
from tests.router.conftest import RunningFleet


@contextlib.asynccontextmanager
async def served(
    fleet: RunningFleet, pool: TokenizerPool, facts: ModelFacts, auth: Auth | None, max_generations: int
) -> AsyncIterator[inference_pb2_grpc.InferenceServiceAsyncStub]:
    """Serve the fleet's router at another address, with authentication or another limit."""
    errors = ErrorInterceptor(lambda error: None)
    locked = () if auth is None else (AuthInterceptor(auth, lambda error: None),)
    server = grpc.aio.server(interceptors=(errors, *locked), options=Limits().server_options())
    preprocessor = Preprocessor(fleet.shell, facts, pool)
    InferenceService(fleet.shell, preprocessor, facts, auth, max_generations).add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)
    await server.stop(grace=None)
    preprocessor.close()
