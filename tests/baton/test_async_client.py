import grpc
import pytest

from baton import AsyncClient, ChatMessage
from baton.errors import (
    InvalidRequest,
    NotFound,
    Unavailable,
)
from baton.operators.v1 import fleet_pb2
from baton.types.snapshots import CostState, Role
from baton.v1 import inference_pb2
from baton.worker.v1 import worker_pb2
from tests.baton.scripted_service import Fail, ScriptedRouter


async def test_tokens_models_and_facts_are_answered_typed() -> None:
    router = ScriptedRouter(
        CountTokens=inference_pb2.CountTokensResponse(count=2, token_ids=[4, 5]),
        ListModels=inference_pb2.ListModelsResponse(
            models=[
                inference_pb2.Model(name="demo", max_context_tokens=512, vocab_size=2048, fingerprint="f00d")
            ]
        ),
        Detokenize=inference_pb2.DetokenizeResponse(text="hi"),
        Describe=fleet_pb2.DescribeResponse(model_name="demo", block_size=16, placement="aggregated"),
    )
    async with router, AsyncClient(router.address) as client:
        assert await client.count_tokens([ChatMessage("user", "hi")]) == (4, 5)
        assert await client.detokenize((4, 5), skip_special_tokens=False) == "hi"
        with pytest.raises(InvalidRequest, match="token_ids"):
            await client.detokenize([-1])
        [model] = await client.models()
        facts = await client.describe()
        with pytest.raises(InvalidRequest, match="text or chat messages"):
            await client.count_tokens([1, 2])
    [asked] = router.calls("Detokenize")
    assert asked == inference_pb2.DetokenizeRequest(token_ids=[4, 5], skip_special_tokens=False)
    assert (model.name, model.max_context_tokens, model.vocab_size) == ("demo", 512, 2048)
    assert model.fingerprint == "f00d"
    assert (facts.model_name, facts.block_size, facts.placement) == ("demo", 16, "aggregated")


async def test_questions_go_to_another_router_when_one_is_away() -> None:
    away = ScriptedRouter(ListModels=Fail(grpc.StatusCode.UNAVAILABLE))
    there = ScriptedRouter(ListModels=inference_pb2.ListModelsResponse())
    async with away, there, AsyncClient([away.address, there.address]) as client:
        for _ in range(3):
            assert await client.models() == ()
    assert len(away.calls("ListModels")) == 1, "a router that just failed is asked last"
    assert len(there.calls("ListModels")) == 3


async def test_calls_are_spread_over_routers_that_serve() -> None:
    answer = inference_pb2.ListModelsResponse()
    one, two = ScriptedRouter(ListModels=answer), ScriptedRouter(ListModels=answer)
    async with one, two, AsyncClient([one.address, two.address]) as client:
        for _ in range(4):
            await client.models()
    assert (len(one.calls("ListModels")), len(two.calls("ListModels"))) == (2, 2)


async def test_cancel_and_drain_find_the_router_that_knows() -> None:
    one, two = ScriptedRouter(), ScriptedRouter()
    two.running = {"mine", "decode-0"}
    async with one, two, AsyncClient([one.address, two.address], tenant="t") as client:
        assert await client.cancel("mine")
        assert not await client.cancel("other")
        await client.drain("decode-0")
        with pytest.raises(NotFound, match="decode-1"):
            await client.drain("decode-1")
        await one.stop()
        assert await client.cancel("mine"), "one router in reach is enough"
        await two.stop()
        with pytest.raises(Unavailable):
            await client.cancel("mine")
    assert two.calls("Cancel")[0].tenant == "t"


async def test_watching_tells_of_workers_and_goes_on_at_another_router() -> None:
    load = worker_pb2.WorkerLoad(running=2, free_blocks=6, cached_blocks=1, draining=True)
    worker = fleet_pb2.WorkerStatus(
        worker_id="decode-0",
        role=worker_pb2.WORKER_ROLE_DECODE,
        connected=True,
        num_blocks=10,
        load=load,
        step_seconds=0.005,
        cost_model=worker_pb2.CostModel(
            coefficients=[1.0, 2.0],
            knee_tokens=16,
            ratio_q10=0.9,
            ratio_q50=1.0,
            ratio_q95=1.1,
            is_trusted=True,
        ),
    )
    one, two = ScriptedRouter(), ScriptedRouter()
    one.snapshots = [fleet_pb2.WatchResponse(router_id="one", workers=[worker])]
    one.watch_hangs = False
    two.snapshots = [fleet_pb2.WatchResponse(router_id="two")]
    async with one, two, AsyncClient([one.address, two.address]) as client:
        snapshots = client.watch(interval_s=0.1)
        first, second = await anext(snapshots), await anext(snapshots)
        await snapshots.aclose()
    assert (first.router_id, second.router_id) == ("one", "two")
    [state] = first.workers
    assert (state.role, state.used_blocks, state.draining, state.running) == (Role.DECODE, 4, True, 2)
    assert state.cost == CostState(True, (1.0, 2.0), 16, 0.9, 1.0, 1.1)
    assert one.calls("Watch")[0].interval_ms == 100
