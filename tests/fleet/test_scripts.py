"""A model that writes given texts: what every API says of each, whichever way its tokens went."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc.aio
import httpx
import pytest
import pytest_asyncio

from baton import AsyncClient, Chat, ChatMessage, Sampling, Slo, Stop
from baton.fleet import Fleet, FleetSpec
from baton.types import Path as RequestPath
from baton.v1 import inference_pb2, inference_pb2_grpc
from baton.wire.convert import request_to_pb
from tests.fleet.driving import FEW, until
from tests.forked import Zygote
from tests.patience import PATIENCE_S
from tests.script_model import Script, begin, build

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

LONG = [f" w{place}" for place in range(120)]
SCRIPTS = {
    "words": Script([" D", "E", " D", " ", " x"], after="C"),
    "bytes": ["<0xE5>", "<0xAD>", "<0x97>", " x"],
    "#long": LONG,
}
GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Served:
    fleet: Fleet
    client: AsyncClient
    http: httpx.AsyncClient

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the data of a stream's events, without its marks of the end."""
        async with self.http.stream("POST", path, json=body | {"stream": True}) as response:
            assert response.status_code == 200, await response.aread()
            lines = [line async for line in response.aiter_lines()]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(line) for line in data if line != "[DONE]"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("scripts")
    spec = FleetSpec(
        model=build(folder / "scripts", SCRIPTS),
        gateways=1,
        placement="disaggregated",
        speculate="lookup",
        extra_args={"prefill": FEW, "decode": FEW},
        run_dir=folder / "run",
    )
    async with (
        Fleet(spec, make_process=zygote.process) as fleet,
        AsyncClient(fleet.router_addresses) as client,
        httpx.AsyncClient(base_url=fleet.gateway_urls[0], timeout=PATIENCE_S) as http,
    ):
        yield Served(fleet, client, http)


async def test_the_blank_before_a_completion_is_its_own(served: Served) -> None:
    body = {"prompt": "a C", "max_tokens": 20, "temperature": 0}
    whole = await served.post("/v1/completions", body)
    assert whole["choices"][0]["text"] == " DE D  x"
    chunks = await served.events("/v1/completions", body)
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == " DE D  x"
    echoed = await served.post("/v1/completions", body | {"echo": True})
    assert echoed["choices"][0]["text"] == "a C DE D  x"
    prompt = await served.client.count_tokens("a C")
    by_ids = await served.post("/v1/completions", body | {"prompt": list(prompt)})
    assert by_ids["choices"][0]["text"] == " DE D  x"
    # A stop string may begin with it.
    stopped = await served.post("/v1/completions", body | {"stop": [" D"]})
    assert stopped["choices"][0]["text"] == ""


async def test_a_continued_message_goes_on_with_its_blank(served: Served) -> None:
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "a C"}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    body = {"messages": messages, "max_tokens": 20, "temperature": 0}
    chat = await served.post("/v1/chat/completions", body | fields)
    assert chat["choices"][0]["message"]["content"] == " DE D  x"
    said = await served.post("/v1/messages", body)
    assert said["content"] == [{"type": "text", "text": " DE D  x"}]


async def test_a_character_is_told_where_it_ends(served: Served) -> None:
    prompt = list(await served.client.count_tokens("a" + begin("bytes")))
    whole = await served.client.complete(prompt, sampling=GREEDY, stop=Stop(max_tokens=20))
    assert whole.choices[0].text == "字 x"
    # The same tokens, of which the prompt has the first ones already.
    for cut in (1, 2):
        begun = [*prompt, *whole.choices[0].token_ids[:cut]]
        rest = await served.client.complete(begun, sampling=GREEDY, stop=Stop(max_tokens=20))
        assert rest.choices[0].text == "字 x"


async def test_a_resumed_output_has_the_text_of_an_undisturbed_one(served: Served) -> None:
    stop = Stop(max_tokens=20)
    whole = await served.client.complete("a C", sampling=GREEDY, stop=stop)
    assert whole.finished.path is RequestPath.DISAGGREGATED
    (choice,) = whole.choices
    async with grpc.aio.insecure_channel(served.fleet.router_addresses[0]) as channel:
        router = inference_pb2_grpc.InferenceServiceStub(channel)
        for count in range(1, len(choice.token_ids)):
            request = request_to_pb("a C", GREEDY, stop, Slo(), request_id=f"resumed-{count}")
            had = inference_pb2.ReceivedTokens(choice=0, token_ids=choice.token_ids[:count])
            resume = inference_pb2.ResumeRequest(request=request, session=1, received=[had])
            rest = "".join([found.event.tokens.text async for found in router.Resume(resume)])
            assert choice.text.endswith(rest)
            alone = await served.client.complete("a C", sampling=GREEDY, stop=Stop(max_tokens=count))
            assert alone.choices[0].text + rest == choice.text
