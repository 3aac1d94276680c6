"""The endpoint picker as a process, asked as a proxy asks it, with real gateways and a scripted router."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from baton.picker.v1 import ext_proc_pb2 as pb
from baton.v1 import errors_pb2, inference_pb2
from gateway.picker.pool import choose
from tests.baton.scripted_service import BREAK, ScriptedRouter
from tests.fleet.driving import until
from tests.gateway.picker.asking import MODEL, TEXT, Asking, endpoint_of, head, passed_on, piece, serves
from tests.gateway.picker.running import running_picker
from tests.gateway.running import running_gateway
from tests.ports import free_port

pytestmark = pytest.mark.integration

ASKED = {"prompt": "The list is", "max_tokens": 8}
REFUSED = inference_pb2.QuoteResponse(
    verdict=inference_pb2.VERDICT_REFUSED,
    prompt_tokens=3,
    retry_after_ms=2500,
    refusal=errors_pb2.SloRefusal(
        predicted_ttft_ms=900, attainable_ttft_ms=950, attainable_tpot_ms=30, attainable_itl_ms=40
    ),
)
ACCEPTED = inference_pb2.QuoteResponse(verdict=inference_pb2.VERDICT_ACCEPTED, prompt_tokens=3)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def router() -> AsyncIterator[ScriptedRouter]:
    async with ScriptedRouter(ListModels=MODEL, Quote=ACCEPTED) as router:
        yield router


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asking(router: ScriptedRouter) -> AsyncIterator[Asking]:
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(running_gateway([router.address])) for _ in range(2)]
        gateways = tuple(gateway.url.removeprefix("http://") for gateway in running)
        flags = ("--max-body-bytes", "200000")
        picker = await stack.enter_async_context(running_picker(gateways, [router.address], *flags))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(picker.address))
        asking = Asking(router, gateways, channel)

        async def picks_both() -> bool:
            return {endpoint_of((await asking.ask(head(method="GET")))[0]) for _ in range(2)} == set(gateways)

        await until(lambda: serves(channel), "the picker is ready")
        await until(picks_both, "both gateways serve")
        yield asking


@pytest.mark.asyncio(loop_scope="module")
class TestProcess:
    async def test_gateways_take_turns_and_a_body_passes_unchanged(self, asking: Asking) -> None:
        named = []
        for _ in range(4):
            first, *rest = await asking.ask(head(), piece(b'{"pro'), piece(b'mpt": "a"}', ends=True))
            named.append(endpoint_of(first))
            assert passed_on(rest) == (b'{"prompt": "a"}', [False, True])
        assert named[:2] == named[2:]
        assert set(named) == set(asking.gateways)

    async def test_large_pieces_are_cut_to_what_proxies_take(self, asking: Asking) -> None:
        body = bytes(range(256)) * 700
        _, *rest = await asking.ask(head(), piece(body, ends=True))
        assert passed_on(rest) == (body, [False, False, True])

    async def test_a_body_over_the_limit_passes_unread(self, asking: Asking) -> None:
        asking.router.answers["Quote"] = REFUSED
        body = json.dumps({"slo": {"ttft_ms": 1}} | ASKED | {"prompt": "x" * 300_000}).encode()
        parts = [body[start : start + 50_000] for start in range(0, len(body), 50_000)]
        sent = [piece(part, ends=part is parts[-1]) for part in parts]
        first, *rest = await asking.ask(head(), *sent)
        assert endpoint_of(first) in asking.gateways
        assert passed_on(rest)[0] == body

    async def test_trailers_end_a_body(self, asking: Asking) -> None:
        trailers = pb.ProcessingRequest(request_trailers=pb.HttpTrailers())
        first, *rest, last = await asking.ask(head(), piece(b"{}"), trailers)
        assert endpoint_of(first) in asking.gateways
        assert passed_on(rest) == (b"{}", [False])
        assert last.WhichOneof("response") == "request_trailers"

    async def test_only_gateways_that_the_proxy_allows_are_picked(self, asking: Asking) -> None:
        [allowed, other] = asking.gateways
        for _ in range(3):
            [response] = await asking.ask(head(method="GET", subset=[allowed, "10.0.0.1:8000"]))
            assert endpoint_of(response) == allowed
        for subset in ([], ["10.0.0.1:8000"]):
            [response] = await asking.ask(head(method="GET", subset=subset))
            assert response.immediate_response.status.code == 503
        assert other != allowed

    async def test_a_buffered_body_is_decided_on_after_its_head(self, asking: Asking) -> None:
        config = pb.ProtocolConfiguration(request_body_mode=pb.BODY_MODE_BUFFERED)
        first, second = await asking.ask(head(config=config), piece(b"{}", ends=True))
        assert not first.request_headers.response.header_mutation.set_headers
        assert endpoint_of(second) in asking.gateways

    async def test_a_body_that_is_not_sent_whole_is_not_waited_for(self, asking: Asking) -> None:
        for mode in (pb.BODY_MODE_UNSPECIFIED, pb.BODY_MODE_STREAMED, pb.BODY_MODE_BUFFERED_PARTIAL):
            config = pb.ProtocolConfiguration(request_body_mode=mode)
            [response] = await asking.ask(head(config=config))
            assert endpoint_of(response) in asking.gateways

    async def test_a_proxy_that_skips_heads_is_told_so(self, asking: Asking) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asking.ask(piece(b"{}", ends=True))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "request_header_mode" in (caught.value.details() or "")

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            (TEXT, ASKED),
            ("/v1/chat/completions?a=b", {"messages": [{"role": "user", "content": "hi"}]}),
            (
                "/v1/messages",
                {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]},
            ),
            ("/v1/responses", {"input": "hi"}),
        ],
    )
    async def test_a_refusal_is_the_callers_at_once(
        self, asking: Asking, path: str, body: dict[str, Any]
    ) -> None:
        asking.router.answers["Quote"] = REFUSED
        for asked, headers in (
            (body | {"slo": {"ttft_ms": 5}}, {}),
            (body | {"slo": {"ttft_ms": 5, "unknown": 1}, "tools": None}, {}),
            (body, {"x_baton_ttft_ms": "5"}),
        ):
            [response] = await asking.post(asked, path, **headers)
            given = response.immediate_response
            told = {field.header.key: field.header.raw_value.decode() for field in given.headers.set_headers}
            error = json.loads(given.body)
            assert given.status.code == 429
            assert (told["content-type"], told["retry-after"], told["retry-after-ms"]) == (
                "application/json",
                "3",
                "2500",
            )
            assert (error.get("type") == "error") == (path == "/v1/messages")
            assert error["error"]["code"] == "slo_refused"
            assert error["error"]["attainable"]["ttft_ms"] == 950
        assert {quoted.request.slo.ttft_ms for quoted in asking.router.calls("Quote")} == {5}

    async def test_a_quote_is_for_the_adapter_that_the_model_names(self, asking: Asking) -> None:
        asking.router.answers["Quote"] = REFUSED
        for model, adapter in (("m:red", "red"), ("m", "")):
            [response] = await asking.post(ASKED | {"model": model, "slo": {"ttft_ms": 5}})
            assert response.immediate_response.status.code == 429
            assert asking.router.calls("Quote")[-1].request.adapter == adapter

    async def test_what_would_be_accepted_or_cannot_be_quoted_passes(self, asking: Asking) -> None:
        for answer in (ACCEPTED, BREAK):
            asking.router.answers["Quote"] = answer
            first, *_ = await asking.post(ASKED | {"slo": {"ttft_ms": 5}})
            assert endpoint_of(first) in asking.gateways

    @pytest.mark.parametrize(
        ("body", "path", "headers"),
        [
            (ASKED, TEXT, {}),
            (ASKED | {"slo": {"slo_class": "batch"}}, TEXT, {}),
            (ASKED | {"slo": {"ttft_ms": "soon"}}, TEXT, {}),
            (ASKED | {"slo": {"ttft_ms": 5}}, TEXT, {"idempotency_key": "mine"}),
            (ASKED | {"model": "m:blue", "slo": {"ttft_ms": 5}}, TEXT, {}),
            ({"input": "hi", "previous_response_id": "resp_1", "slo": {"ttft_ms": 5}}, "/v1/responses", {}),
            (["slo"], TEXT, {}),
            (ASKED | {"slo": {"ttft_ms": 5}}, "/v1/files", {}),
        ],
    )
    async def test_no_quote_is_asked_where_it_could_not_refuse(
        self, asking: Asking, body: Any, path: str, headers: dict[str, str]
    ) -> None:
        asking.router.answers["Quote"] = REFUSED
        before = len(asking.router.calls("Quote"))
        first, *_ = await asking.post(body, path, **headers)
        assert endpoint_of(first) in asking.gateways
        assert len(asking.router.calls("Quote")) == before


async def test_callers_get_503_until_a_gateway_serves() -> None:
    async with ScriptedRouter(ListModels=MODEL) as router, AsyncExitStack() as stack:
        later = f"127.0.0.1:{free_port()}"
        picker = await stack.enter_async_context(running_picker([later], [router.address]))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(picker.address))
        asking = Asking(router, (later,), channel)
        [response] = await asking.ask(head(method="GET"))
        assert response.immediate_response.status.code == 503
        assert json.loads(response.immediate_response.body)["error"]["code"] == "unavailable"
        assert await serves(channel, "liveness")
        assert not await serves(channel)
        await stack.enter_async_context(running_gateway([router.address], "--listen", later))
        await until(lambda: serves(channel), "the picker is ready")
        [response] = await asking.ask(head(method="GET"))
        assert endpoint_of(response) == later


async def test_a_gateway_that_reaches_no_router_is_not_picked() -> None:
    async with ScriptedRouter(ListModels=MODEL) as router, AsyncExitStack() as stack:
        alone = await stack.enter_async_context(running_gateway([f"127.0.0.1:{free_port()}"]))
        other = await stack.enter_async_context(running_gateway([router.address]))
        gateways = tuple(gateway.url.removeprefix("http://") for gateway in (alone, other))
        picker = await stack.enter_async_context(running_picker(gateways, [router.address]))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(picker.address))
        await until(lambda: serves(channel), "the picker is ready")
        asking = Asking(router, gateways, channel)
        for _ in range(4):
            [response] = await asking.ask(head(method="GET"))
            assert endpoint_of(response) == gateways[1]


@given(st.lists(st.text(max_size=3), unique=True), st.none() | st.frozensets(st.text(max_size=3)))
def test_turns_go_round_those_that_serve_and_are_allowed(
    serving: list[str], subset: frozenset[str] | None
) -> None:
    allowed = [address for address in serving if subset is None or address in subset]
    chosen = [choose(serving, subset, turn) for turn in range(2 * len(allowed) or 1)]
    assert chosen == [*allowed, *allowed] if allowed else chosen == [None]
