"""Many generations over one call outlive its router: each goes on at the next index on another one.

The SDK opens such calls by itself.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from baton import AsyncClient, Sampling, Stop, Tokens
from baton.fleet import FleetSpec
from baton.v1 import generation_pb2, inference_pb2, inference_pb2_grpc
from baton.wire.many import BEYOND_FEW
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import TRIES, assert_all_is_freed, exact
from tests.fleets import DEMO_MODEL
from tests.patience import PATIENCE_S
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
        await asyncio.wait_for(assert_all_is_freed(fleet, client), PATIENCE_S)


NUM_STREAMS = 40
PROMPT = [3 + i % 90 for i in range(40)]
LONG = Stop(max_tokens=200, ignore_eos=True)


async def received(client: AsyncClient, seed: int, begun: asyncio.Event) -> tuple[list[int], int]:
    """Return a generation's tokens, and how often it was resumed."""
    stream = client.generate(PROMPT, sampling=Sampling(temperature=1.0, seed=seed), stop=LONG)
    token_ids: list[int] = []
    async for event in stream:
        if isinstance(event, Tokens):
            assert event.first_index == len(token_ids), "a token was lost or repeated"
            token_ids += event.token_ids
            begun.set()
    return token_ids, stream.resumes


async def test_a_clients_streams_outlive_their_router_alone_and_together(
    run_dir: Path, make_fleet: MakeFleet
) -> None:
    spec = FleetSpec(model=DEMO_MODEL, timed="demo-cpu", prefill=0, routers=2, run_dir=run_dir)
    async with (
        make_fleet(spec) as fleet,
        AsyncClient(fleet.router_addresses) as client,
        AsyncClient(fleet.router_addresses, multiplex=False) as alone,
    ):
        at_each = NUM_STREAMS // 2
        assert at_each > BEYOND_FEW.num_alone, "some share a call"
        expected = await asyncio.gather(
            *(received(alone, seed, asyncio.Event()) for seed in range(NUM_STREAMS))
        )
        for _ in range(TRIES):  # on a machine that lets this process stand still, streams end before the kill
            begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
            streams = [
                asyncio.create_task(received(client, seed, begun[seed])) for seed in range(NUM_STREAMS)
            ]
            await asyncio.gather(*(event.wait() for event in begun))
            fleet.process("router-0").kill()
            struck = await asyncio.gather(*streams)
            assert [token_ids for token_ids, _ in struck] == [token_ids for token_ids, _ in expected]
            if sum(resumes for _, resumes in struck) == at_each:
                break
            await fleet.revive("router-0")
        else:
            raise AssertionError("each time streams had ended before their router was killed")
        await asyncio.wait_for(assert_all_is_freed(fleet, client), PATIENCE_S)
