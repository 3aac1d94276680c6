"""The names that requests may give the model: its own, others, and each with an adapter."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from baton.types import Model
from baton.v1 import generation_pb2, inference_pb2
from gateway.batches.lines import LineChecker
from gateway.serving.errors import ApiError
from gateway.serving.fleet import CallerCredentials, FleetClient, not_served, served_by
from tests.baton.scripted_service import WHOLE, Fail, ScriptedRouter
from tests.gateway.batches import jsonl, line
from tests.gateway.running import Gateway, running_gateway
from tests.gateway.test_openai_requests import _bad
from tests.redis_server import redis_server

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
HELLO = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO},
    TEXT: {"prompt": "hello"},
    MESSAGES: {"messages": HELLO, "max_tokens": 9},
    RESPONSES: {"input": "hello"},
}
COUNTED = inference_pb2.CountTokensResponse(token_ids=[1, 2], count=2)


def models(*adapters: str) -> inference_pb2.ListModelsResponse:
    model = inference_pb2.Model(
        name="m",
        more_names=["claude-sonnet-4-5", "org/a:b"],
        max_context_tokens=512,
        vocab_size=8,
        fingerprint="f" * 32,
        adapters=adapters,
        default_sampling=generation_pb2.SamplingParams(temperature=0.6, top_k=20),
    )
    return inference_pb2.ListModelsResponse(models=[model])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[tuple[ScriptedRouter, Gateway]]:
    with redis_server() as redis:
        async with (
            ScriptedRouter(ListModels=models("red"), CountTokens=COUNTED) as router,
            running_gateway([router.address], "--redis", redis.url) as gateway,
        ):
            yield router, gateway


@pytest.mark.asyncio(loop_scope="module")
async def test_models_lists_every_name(pair: tuple[ScriptedRouter, Gateway]) -> None:
    _, gateway = pair
    data = (await gateway.http.get("/v1/models")).json()["data"]
    names = ["m", "claude-sonnet-4-5", "org/a:b"]
    assert [model["id"] for model in data] == [both for name in names for both in (name, f"{name}:red")]
    assert [model.get("root") for model in data] == [None, *["m"] * 5]
    assert [model.get("parent") for model in data] == [None, "m"] * 3
    for model in data:
        assert model["default_sampling_params"] == {"temperature": 0.6, "top_k": 20}
        assert (await gateway.http.get(f"/v1/models/{model['id']}")).json() == model
    assert (await gateway.http.get("/v1/models/b")).status_code == 404


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", BODIES)
async def test_every_api_takes_every_name_and_repeats_it(
    pair: tuple[ScriptedRouter, Gateway], path: str
) -> None:
    router, gateway = pair
    router.scripts[:] = [WHOLE]
    for name in ("m", "claude-sonnet-4-5", "org/a:b", "m:red", "claude-sonnet-4-5:red", "org/a:b:red"):
        whole = await gateway.http.post(path, json=BODIES[path] | {"model": name})
        assert (whole.status_code, whole.json()["model"]) == (200, name), whole.text
        assert router.calls("Generate")[-1].adapter == ("red" if name.endswith(":red") else "")
        streamed = await gateway.http.post(path, json=BODIES[path] | {"model": name, "stream": True})
        assert json.dumps(name) in streamed.text
    assert (await gateway.http.post(path, json=BODIES[path])).json()["model"] == "m"
    unknown = await gateway.http.post(path, json=BODIES[path] | {"model": "claude"})
    assert unknown.status_code == 404
    assert "'claude-sonnet-4-5'" in unknown.json()["error"]["message"]


@pytest.mark.asyncio(loop_scope="module")
async def test_calls_without_a_generation_take_every_name(pair: tuple[ScriptedRouter, Gateway]) -> None:
    _, gateway = pair
    for name, status in (("org/a:b", 200), ("claude-sonnet-4-5:red", 200), ("other", 404)):
        for path, body in (
            ("/v1/messages/count_tokens", {"messages": HELLO}),
            ("/tokenize", {"prompt": "a"}),
        ):
            response = await gateway.http.post(path, json=body | {"model": name})
            assert response.status_code == status, response.text


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_an_adapter_that_is_gone_is_404_at_once(
    pair: tuple[ScriptedRouter, Gateway], path: str, stream: bool
) -> None:
    router, gateway = pair
    router.answers["ListModels"] = models("red")
    await gateway.http.get("/v1/models")
    router.answers["ListModels"] = models("blue")
    router.scripts[:] = [
        (Fail(grpc.StatusCode.INVALID_ARGUMENT, "adapter is 'red'", _bad("INVALID_FIELD", "adapter")),)
    ]
    body = BODIES[path] | {"model": "org/a:b:red", "stream": stream}
    response = await gateway.http.post(path, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (404, "model", "model_not_found")
    assert error["message"].startswith("model is 'org/a:b:red'; accepted: 'm', ")
    router.answers["ListModels"] = models("red")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_file_may_name_the_adapters_that_there_are_now(pair: tuple[ScriptedRouter, Gateway]) -> None:
    router, gateway = pair
    await gateway.http.get("/v1/models")
    router.answers["ListModels"] = models("blue")
    for name, status in (("org/a:b:blue", 200), ("m:red", 400)):
        file = jsonl([line("a", model=name)])
        response = await gateway.http.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", file)}
        )
        assert response.status_code == status, response.text
    router.answers["ListModels"] = models("red")


def test_lines_of_a_batch_may_give_every_name() -> None:
    def find(name: str) -> Model:
        if name == "claude":
            return Model("m", "llama", 4096, 300, True, "")
        raise not_served(name, ["m", "claude"])

    checker = LineChecker(find, 1000)
    checker.check(jsonl([line("a", model="claude")])[:-1])
    with pytest.raises(ApiError, match=r"body\.model is 'other'; accepted: 'm', 'claude', which"):
        checker.check(jsonl([line("b", model="other")])[:-1])
    assert checker.models == {"claude"}


async def test_the_fleets_own_names_come_before_others() -> None:
    facts = Model("m", "llama", 4096, 300, True, "", adapters=("red",), more_names=("m", "m:red", "x"))
    async with FleetClient(["127.0.0.1:1"], CallerCredentials(), 1.0) as fleet:
        served = served_by(fleet, facts)
    assert [*served] == ["m", "m:red", "m:red:red", "x", "x:red"]
    assert served["m:red"].adapter == "red"
