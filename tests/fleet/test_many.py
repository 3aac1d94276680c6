"""Many generations over one call outlive its router: each goes on at the next index on another one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from baton import AsyncClient
from baton.v1 import generation_pb2, inference_pb2, inference_pb2_grpc
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import assert_all_is_freed, exact
from tests.router.calls import tokens_of
from tests.router.many_calls import ManyClient

pytestmark = pytest.mark.integration

NUM = 6


def request(place: int) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        request_id=f"many-{place}",
        tokens=inference_pb2.TokenInput(token_ids=[3 + (place + i) % 90 for i in range(40)]),
        sampling=generation_pb2.SamplingParams(temperature=1.0, seed=place),
        stop=generation_pb2.StopRules(max_tokens=120, ignore_eos=True),
        resume_grace_ms=10_000,
    )


async def test_a_killed_router_loses_and_repeats_no_token(run_dir: Path, make_fleet: MakeFleet) -> None:
    spec = exact(run_dir, routers=2)
    async with (
        make_fleet(spec) as fleet,
        AsyncClient(fleet.router_addresses[1]) as client,
        grpc.aio.insecure_channel(fleet.router_addresses[0]) as first,
        grpc.aio.insecure_channel(fleet.router_addresses[1]) as second,
    ):
        many = ManyClient(inference_pb2_grpc.InferenceServiceStub(first))
        for place in range(NUM):
            await many.send(place, generate=request(place))
        for place in range(NUM):
            await many.heard_tokens(place)
        fleet.process("router-0").kill()
        await many.error()
        received = [tokens_of(many.events(place)) for place in range(NUM)]
        again = ManyClient(inference_pb2_grpc.InferenceServiceStub(second))
        for place in range(NUM):
            had = inference_pb2.ReceivedTokens(choice=0, token_ids=received[place])
            resume = inference_pb2.ResumeRequest(request=request(place), session=1, received=[had])
            await again.send(place, resume=resume)
        await again.done()
        for place in range(NUM):
            for event in again.events(place):
                if event.WhichOneof("event") == "tokens":
                    assert event.tokens.first_index == len(received[place])
                    received[place] += event.tokens.token_ids
        undisturbed = ManyClient(inference_pb2_grpc.InferenceServiceStub(second))
        for place in range(NUM):
            alone = request(place)
            alone.request_id += "-again"
            await undisturbed.send(place, generate=alone)
        await undisturbed.done()
        assert received == [tokens_of(undisturbed.events(place)) for place in range(NUM)]
        assert {len(tokens) for tokens in received} == {120}
        await asyncio.wait_for(assert_all_is_freed(fleet, client), 60)
