import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from baton import AsyncClient, BatonError, Chat, ChatMessage, Sampling, Slo, SloClass, Stop, Timeout
from baton.chat import Prompt
from baton.errors import (
    Conflict,
    DeadlineExceeded,
    FieldViolation,
    Internal,
    InvalidRequest,
    NotFound,
    QueueFull,
    Refused,
    Superseded,
    TooLarge,
    Unavailable,
    Unsupported,
)
from baton.operators.v1 import fleet_pb2
from baton.snapshots import CostState, Role
from baton.types import Attainable, Verdict
from baton.v1 import errors_pb2, inference_pb2
from baton.worker.v1 import worker_pb2
from tests.baton.scripted_service import Fail, ScriptedRouter, bad_field, retry_after

QUICK = Timeout(connect_s=0.3)


async def test_every_request_part_arrives_and_what_is_unset_stays_unset() -> None:
    async with ScriptedRouter() as router, AsyncClient(router.address, tenant="t", model="m") as client:
        await client.complete(
            "hello",
            sampling=Sampling(temperature=0, top_k=5, logit_bias={3: -1.5}, logprobs=0),
            stop=Stop(max_tokens=9, strings=("\n",), token_ids=(2,)),
            slo=Slo(ttft_ms=100, itl_ms=40, slo_class=SloClass.INTERACTIVE, allow_at_risk=True),
        )
    [request] = router.calls("Generate")
    assert (request.text, request.tenant, request.model, request.resume_grace_ms) == (
        "hello",
        "t",
        "m",
        10_000,
    )
    sampling, stop, slo = request.sampling, request.stop, request.slo
    assert (sampling.temperature, sampling.top_k, dict(sampling.logit_bias)) == (0, 5, {3: -1.5})
    assert sampling.HasField("temperature")
    assert sampling.HasField("logprobs")
    assert not sampling.HasField("top_p")
    assert (stop.max_tokens, list(stop.stop_strings), list(stop.stop_token_ids)) == (9, ["\n"], [2])
    assert (slo.ttft_ms, slo.itl_ms, slo.slo_class, slo.allow_at_risk) == (100, 40, 1, True)
    assert not slo.HasField("tpot_ms")


async def test_a_prompt_is_text_a_chat_or_token_ids() -> None:
    async with ScriptedRouter() as router, AsyncClient(router.address) as client:
        await client.complete([ChatMessage("user", "hi"), ChatMessage("assistant", "ho")])
        await client.complete([5, 6, 7])
        await client.complete([])
    chat, ids, nothing = router.calls("Generate")
    assert [(message.role, message.content) for message in chat.chat.messages] == [
        ("user", "hi"),
        ("assistant", "ho"),
    ]
    assert list(ids.tokens.token_ids) == [5, 6, 7]
    assert nothing.WhichOneof("input") == "tokens", "the router judges what is empty, not the client"


@pytest.mark.parametrize(
    ("prompt", "sampling", "stop", "field"),
    [
        ("p", Sampling(top_k=-1), Stop(), "sampling.top_k"),
        ("p", Sampling(temperature="hot"), Stop(), "sampling.temperature"),  # type: ignore[arg-type]
        ("p", Sampling(seed=2**64), Stop(), "sampling.seed"),
        ("p", Sampling(logit_bias={-1: 1.0}), Stop(), "sampling.logit_bias"),
        ("p", Sampling(), Stop(max_tokens=-5), "stop.max_tokens"),
        ("p", Sampling(), Stop(strings="no"), "stop.stop_strings"),
        ([1, -1], Sampling(), Stop(), "tokens.token_ids"),
        ([ChatMessage("user", 5)], Sampling(), Stop(), "chat.messages[0].content"),  # type: ignore[arg-type]
    ],
)
async def test_what_the_contract_cannot_carry_is_refused_unsent(
    prompt: Prompt, sampling: Sampling, stop: Stop, field: str
) -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest) as error:
            client.generate(prompt, sampling=sampling, stop=stop)
    assert error.value.field == field
    assert str(error.value).startswith(f"{field} is ")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, NotFound),
        (grpc.StatusCode.ALREADY_EXISTS, Conflict),
        (grpc.StatusCode.ABORTED, Superseded),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded),
        (grpc.StatusCode.UNIMPLEMENTED, Unsupported),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, TooLarge),
        (grpc.StatusCode.DATA_LOSS, Internal),
    ],
)
async def test_a_status_without_details_has_its_error(code: grpc.StatusCode, kind: type[BatonError]) -> None:
    async with (
        ScriptedRouter(ListModels=Fail(code, "so it is")) as router,
        AsyncClient(router.address) as client,
    ):
        with pytest.raises(kind, match="so it is"):
            await client.models()
    assert len(router.calls("ListModels")) == 1


async def test_an_invalid_request_names_every_wrong_field() -> None:
    wrong = bad_field("sampling.top_p", "over 0, up to 1")
    wrong.field_violations.add(field="sampling.min_p", description="0 to 1")
    fail = Fail(grpc.StatusCode.INVALID_ARGUMENT, "sampling.top_p is 2: over 0, up to 1", (wrong,))
    async with ScriptedRouter((fail,)) as router, AsyncClient(router.address) as client:
        with pytest.raises(InvalidRequest, match="top_p is 2") as error:
            await client.complete("hello")
    assert (error.value.field, error.value.description) == ("sampling.top_p", "over 0, up to 1")
    assert error.value.violations[1] == FieldViolation("sampling.min_p", "0 to 1")


async def test_a_full_queue_says_when_to_come_back() -> None:
    fail = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full", (retry_after(1.5),))
    async with ScriptedRouter((fail,)) as router, AsyncClient(router.address) as client:
        with pytest.raises(QueueFull) as error:
            await client.complete("hello")
    assert error.value.retry_after_s == 1.5


async def test_a_refusal_says_what_could_have_been_promised() -> None:
    refusal = errors_pb2.SloRefusal(
        predicted_ttft_ms=900, predicted_tpot_ms=40, attainable_ttft_ms=950, attainable_tpot_ms=45,
        predicted_itl_ms=55, attainable_itl_ms=60,
    )  # fmt: skip
    details: tuple[Message, ...] = (retry_after(0.25), refusal)
    fail = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "not within 100 ms", details)
    async with ScriptedRouter((fail,)) as router, AsyncClient(router.address) as client:
        with pytest.raises(Refused, match="not within 100 ms") as error:
            await client.complete("hello", slo=Slo(ttft_ms=100))
    assert error.value.retry_after_s == 0.25
    assert (error.value.attainable_ttft_ms, error.value.attainable_tpot_ms) == (950, 45)
    assert (error.value.attainable_itl_ms, error.value.attainable.predicted_itl_ms) == (60, 55)
    assert error.value.attainable.predicted_ttft_ms == 900


def info(reason: str, domain: str = "baton.v1") -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=reason, domain=domain)


async def test_an_error_has_the_reason_that_the_router_names() -> None:
    full = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", (info("QUEUE_FULL"), retry_after(1)))
    foreign = Fail(grpc.StatusCode.UNAUTHENTICATED, "who", (info("API_KEY_INVALID", "proxy.example"),))
    for fail, reason in ((full, "QUEUE_FULL"), (foreign, "")):
        async with ScriptedRouter((fail,)) as router, AsyncClient(router.address) as client:
            with pytest.raises(BatonError) as error:
                await client.complete("hello")
        assert error.value.reason == reason


async def test_paths_lead_from_the_request_whichever_call_holds_it() -> None:
    wrong = Fail(
        grpc.StatusCode.INVALID_ARGUMENT,
        "request.sampling.top_p is 2; accepted: over 0, up to 1",
        (info("INVALID_FIELD"), bad_field("request.sampling.top_p", "request.sampling.top_p is 2")),
    )
    async with ScriptedRouter(Quote=wrong) as router, AsyncClient(router.address) as client:
        with pytest.raises(InvalidRequest, match=r"^sampling\.top_p is 2") as error:
            await client.quote("hello")
    assert (error.value.field, error.value.description) == ("sampling.top_p", "sampling.top_p is 2")
    assert error.value.reason == "INVALID_FIELD"


async def test_a_message_over_the_routers_limit_is_too_large() -> None:
    async with ScriptedRouter() as router, AsyncClient(router.address) as client:
        with pytest.raises(TooLarge):
            await client.complete("x" * (2 << 20))


async def test_a_quote_tells_the_verdict_and_when_refused_what_would_do() -> None:
    promise = inference_pb2.LatencyPromise(predicted_ttft_ms=20, predicted_tpot_ms=4, ttft_ms=50)
    good = inference_pb2.QuoteResponse(
        verdict=inference_pb2.VERDICT_ACCEPTED, promise=promise, prompt_tokens=8
    )
    refusal = errors_pb2.SloRefusal(attainable_ttft_ms=70, attainable_tpot_ms=9)
    bad = inference_pb2.QuoteResponse(
        verdict=inference_pb2.VERDICT_REFUSED, retry_after_ms=1500, refusal=refusal
    )
    async with ScriptedRouter(Quote=good) as router, AsyncClient(router.address) as client:
        quote = await client.quote("hello", slo=Slo(ttft_ms=50))
        router.answers["Quote"] = bad
        refused = await client.quote("hello")
    assert (quote.verdict, quote.prompt_tokens, quote.retry_after_s) == (Verdict.ACCEPTED, 8, None)
    assert (quote.promise.ttft_ms, quote.promise.tpot_ms) == (50, None)
    assert refused.verdict is Verdict.REFUSED
    assert refused.retry_after_s == 1.5
    assert refused.attainable == Attainable(70, 9, 0, 0)


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


@pytest.mark.parametrize("field", ["connect_s", "first_token_s", "total_s"])
def test_a_timeout_must_be_over_zero(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0"):
        Timeout(**{field: 0})


def test_a_client_needs_an_address() -> None:
    with pytest.raises(ValueError, match="addresses is empty"):
        AsyncClient([])
    with pytest.raises(ValueError, match=r"addresses is \[''\]: each must be a router's host:port"):
        AsyncClient("")


async def test_a_chat_carries_what_its_template_is_told() -> None:
    router = ScriptedRouter(CountTokens=inference_pb2.CountTokensResponse(count=1, token_ids=[4]))
    arguments = {"enable_thinking": False, "tools": [{"name": "f"}], "level": 3}
    chat = Chat([ChatMessage("assistant", "so")], arguments, continue_final_message=True)
    async with router, AsyncClient(router.address) as client:
        await client.count_tokens(chat)
        await client.count_tokens(Chat([ChatMessage("user", "hi")], add_generation_prompt=False))
        for wrong in ({"when": object()}, {5: "five"}, "text"):
            with pytest.raises(InvalidRequest, match=r"chat\.template_arguments"):
                await client.count_tokens(Chat([ChatMessage("user", "hi")], wrong))  # type: ignore[arg-type]
    told, other = (call.chat for call in router.calls("CountTokens"))
    assert dict(told.template_arguments)["enable_thinking"] is False
    assert told.template_arguments["level"] == 3
    assert told.template_arguments["tools"][0]["name"] == "f"
    assert (told.HasField("add_generation_prompt"), told.continue_final_message) == (False, True)
    assert (other.add_generation_prompt, other.HasField("add_generation_prompt")) == (False, True)
