"""A model that writes given texts: what every API says of each, whichever way its tokens went."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
import pytest_asyncio

from baton import AsyncClient, Chat, ChatMessage, Finished, Sampling, Slo, Stop, Tokens, Tool, message_of
from baton.fleet import Fleet, FleetSpec
from baton.types import FinishReason
from baton.types import Path as RequestPath
from baton.v1 import inference_pb2, inference_pb2_grpc
from baton.wire.convert import request_to_pb
from tests.fleet import asking
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import FEW, TRIES, busy_workers, metric, until
from tests.fleets import NewFleet
from tests.patience import PATIENCE_S
from tests.script_model import END, EOS, TOOL, Script, begin, build

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

LONG = [f" w{place}" for place in range(120)]
CALL = [
    '<tool_call>\n{"name": "f", "arguments": {"cmd": "rm -r scratch/x ',
    'STOP/y"',
    "}}",
    "\n</tool_call>",
]
FLOOD = [" one", " tw", "<0xC3>", "<0xA9>", ".\n\n"]
SCRIPTS: dict[str, Sequence[str] | Script] = {
    "words": Script([" D", "E", " D", " ", " x"], after="C"),
    "bytes": ["<0xE5>", "<0xAD>", "<0x97>", " x"],
    "#forced": CALL,  # the first, since grammars do not know the other tokens with the same text
    "#call": ["Sure.", *CALL],
    "#half": [
        "Sure.",
        "\n<tool",
        '_call>\n{"name": "f", "argu',
        'ments": {"cmd": ""}}',
        "\n</tool",
        "_call>",
    ],
    "#thinks": Script(
        ["Let us", " see.\n\n", "Yes", ".</thi", "nk>\n\nIt", " is.\n", "\nBye"], opens="<think>"
    ),
    "#ponders": ["<think>", "Let us\n\n", "see</think>", "\n", "\nIt is.", "\n\n", "Bye"],
    "#plain": ["It", " is.\n", "\nBye"],
    "end 1": Script(["one"], end=EOS),
    "end 2": Script(["two"], end=END),
    "end 3": Script(["three"], end=TOOL),
    "#long": LONG,
    "#flood": Script(FLOOD, end="▁one"),  # begins again
}
ENDS = {"generation_config": EOS, "config": END, "tokenizer_config": TOOL}
GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Served:
    fleet: Fleet
    client: AsyncClient
    http: httpx.AsyncClient

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await asking.post(self.http, path, body)

    async def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        return await asking.events(self.http, path, body)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(new_fleet: NewFleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    settings = {
        "model": build(tmp_path_factory.mktemp("scripts") / "model", SCRIPTS, ends=ENDS),
        "speculate": "lookup",
        "extra_args": {"prefill": FEW, "decode": FEW},
    }
    async with (
        new_fleet(decode=2, gateways=1, placement="disaggregated", **settings) as fleet,
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


COMMAND: dict[str, Any] = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
FORCED = COMMAND | {"properties": {"cmd": {"const": "rm -r scratch/x STOP/y"}}, "additionalProperties": False}
CUT = '{"cmd": "rm -r scratch/x '


@dataclass(frozen=True)
class Told:
    """The same output as each API tells it: content, and the name, arguments and end of each call."""

    content: str
    calls: list[str]
    end: object
    stopped_by: str | None = None


async def told_by_chats(
    served: Served, said: str, schema: Any, *, stream: bool, forced: bool, **fields: Any
) -> Told:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body = {"messages": [{"role": "user", "content": said}], "temperature": 0, "tools": [tool]} | fields
    body["tool_choice"] = "required" if forced else "auto"
    path = "/v1/chat/completions"
    if not stream:
        choice = (await served.post(path, body))["choices"][0]
        calls = [call["function"]["arguments"] for call in choice["message"].get("tool_calls", ())]
        content = choice["message"]["content"] or ""
        return Told(content, calls, choice["finish_reason"], choice["stop_reason"])
    content, calls = "", []
    for chunk in await served.events(path, body):
        for choice in chunk["choices"]:
            content += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", ()):
                calls += [""] * ("name" in call["function"])
                calls[-1] += call["function"].get("arguments", "")
    return Told(content, calls, choice["finish_reason"], choice["stop_reason"])


async def told_by_responses(
    served: Served, said: str, schema: Any, *, stream: bool, forced: bool, max_tokens: int, **fields: Any
) -> Told:
    tool = {"type": "function", "name": "f", "parameters": schema, "strict": False}
    body = {"input": said, "temperature": 0, "max_output_tokens": max_tokens, "tools": [tool]} | fields
    body |= {"tool_choice": "required" if forced else "auto", "store": False}
    if stream:
        events = await served.events("/v1/responses", body)
        response = events[-1]["response"]
        assert events[-1]["type"] == f"response.{response['status']}"
    else:
        response = await served.post("/v1/responses", body)
    items = response["output"]
    calls = [item for item in items if item["type"] == "function_call"]
    texts = [item["content"][0]["text"] for item in items if item["type"] == "message"]
    end = response["status"], response["incomplete_details"], [call["status"] for call in calls]
    return Told("".join(texts), [call["arguments"] for call in calls], end)


async def told_by_messages(
    served: Served, said: str, schema: Any, *, stream: bool, forced: bool, stop: Any = None, **fields: Any
) -> Told:
    body = {
        "messages": [{"role": "user", "content": said}],
        "temperature": 0,
        "stop_sequences": stop,
    } | fields
    body["tools"] = [{"name": "f", "input_schema": schema}]
    body["tool_choice"] = {"type": "any" if forced else "auto"}
    if not stream:
        message = await served.post("/v1/messages", body)
        content = "".join(block["text"] for block in message["content"] if block["type"] == "text")
        calls = [json.dumps(block["input"]) for block in message["content"] if block["type"] == "tool_use"]
        return Told(content, calls, message["stop_reason"], message["stop_sequence"])
    content, calls, end = "", [], {}
    for event in await served.events("/v1/messages", body):
        match event["type"]:
            case "content_block_start" if event["content_block"]["type"] == "tool_use":
                calls.append("")
            case "content_block_delta" if event["delta"]["type"] == "text_delta":
                content += event["delta"]["text"]
            case "content_block_delta":
                calls[-1] += event["delta"]["partial_json"]
            case "message_delta":
                end = event["delta"]
    return Told(content, calls, end["stop_reason"], end["stop_sequence"])


INCOMPLETE = {"reason": "max_output_tokens"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("by", ["a stop string", "max_tokens"])
async def test_a_call_that_is_cut_off_is_told_as_incomplete(
    served: Served, by: str, stream: bool, forced: bool
) -> None:
    schema = FORCED if forced else COMMAND
    fields: dict[str, Any] = {"stream": stream, "forced": forced, "max_tokens": 200}
    stop = "STOP" if by == "a stop string" else None
    if stop is not None:
        fields["stop"] = [stop]
    else:
        fields["max_tokens"] = 1 if forced else 2
    said, content = ("#forced", "") if forced else ("#call", "Sure.")
    chat = await told_by_chats(served, said, schema, **fields)
    assert chat == Told(content, [CUT], "length", stop)
    response = await told_by_responses(served, said, schema, **fields)
    assert response == Told(content, [CUT], ("incomplete", INCOMPLETE, ["incomplete"]))
    message = await told_by_messages(served, said, schema, **fields)
    # A stream has begun the block by then; a whole message leaves it out.
    assert message == Told(content, [CUT] if stream else [], "max_tokens", stop)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [2, 3])
async def test_the_half_of_a_call_is_no_content(served: Served, max_tokens: int, stream: bool) -> None:
    fields: dict[str, Any] = {"stream": stream, "forced": False, "max_tokens": max_tokens}
    assert await told_by_chats(served, "#half", COMMAND, **fields) == Told("Sure.", [], "length")
    response = await told_by_responses(served, "#half", COMMAND, **fields)
    assert response == Told("Sure.", [], ("incomplete", INCOMPLETE, []))
    assert await told_by_messages(served, "#half", COMMAND, **fields) == Told("Sure.", [], "max_tokens")


async def test_a_call_that_has_all_its_arguments_is_whole(served: Served) -> None:
    whole = await told_by_chats(served, "#forced", FORCED, stream=False, forced=True, max_tokens=200)
    assert whole == Told("", ['{"cmd": "rm -r scratch/x STOP/y"}'], "tool_calls")
    for end in ({"max_tokens": 5}, {"max_tokens": 200, "stop": ["_call>\n\n"]}, {"max_tokens": 200}):
        fields: dict[str, Any] = {"stream": False, "forced": False} | end
        is_cut = fields["max_tokens"] == 5
        arguments = ['{"cmd": ""}']
        chat = await told_by_chats(served, "#half", COMMAND, **fields)
        assert chat == Told("Sure.", arguments, "length" if is_cut else "tool_calls")
        message = await told_by_messages(served, "#half", COMMAND, **fields)
        assert message == Told("Sure.", arguments, "max_tokens" if is_cut else "tool_use")


async def test_the_sdk_says_of_a_cut_off_call_what_came_of_it(served: Served) -> None:
    tools = [Tool("f", parameters=COMMAND)]
    chat = Chat([ChatMessage("user", "#call")], tools=tools)
    found = await served.client.complete(chat, sampling=GREEDY, stop=Stop(max_tokens=200, strings=["STOP"]))
    message = message_of(found)
    assert (message.content, [call.arguments for call in message.tool_calls]) == ("Sure.", [CUT])
    half = Chat([ChatMessage("user", "#half")], tools=tools)
    found = await served.client.complete(half, sampling=GREEDY, stop=Stop(max_tokens=3))
    message = message_of(found)
    assert (message.content, message.tool_calls) == ("Sure.", ())


@pytest.mark.parametrize(
    ("said", "thought"), [("#thinks", "Let us see.\n\nYes."), ("#ponders", "Let us\n\nsee"), ("#plain", "")]
)
async def test_a_stop_string_ends_the_answer_and_not_the_reasoning(
    served: Served, said: str, thought: str
) -> None:
    messages = [{"role": "user", "content": said}]
    body: dict[str, Any] = {"messages": messages, "temperature": 0, "max_tokens": 100}
    choice = (await served.post("/v1/chat/completions", body | {"stop": ["\n\n"]}))["choices"][0]
    assert choice["message"]["content"] == "It is."
    assert choice["message"].get("reasoning_content", "") == thought
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "\n\n")
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in await served.events("/v1/chat/completions", body | {"stop": ["\n\n"]})
    ]
    assert "".join(delta.get("content") or "" for delta in deltas) == "It is."
    message = await served.post("/v1/messages", body | {"stop_sequences": ["\n\n"]})
    assert message["content"][-1] == {"type": "text", "text": "It is."}
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "\n\n")
    asked = {"input": said, "temperature": 0, "stop": ["\n\n"], "store": False}
    response = await served.post("/v1/responses", asked)
    assert response["output"][-1]["content"][0]["text"] == "It is."
    assert response["status"] == "completed"


async def test_a_resumed_output_stops_where_an_undisturbed_one_does(served: Served) -> None:
    stop = Stop(max_tokens=100, strings=["\n\n"])
    chat = Chat([ChatMessage("user", "#thinks")])
    whole = await served.client.complete(chat, sampling=GREEDY, stop=stop)
    (choice,) = whole.choices
    assert choice.text == "Let us see.\n\nYes.</think>\n\nIt is."
    async with grpc.aio.insecure_channel(served.fleet.router_addresses[0]) as channel:
        router = inference_pb2_grpc.InferenceServiceStub(channel)
        for count in range(1, len(choice.token_ids) + 1):
            request = request_to_pb(chat, GREEDY, stop, Slo(), request_id=f"thinks-{count}")
            had = inference_pb2.ReceivedTokens(choice=0, token_ids=choice.token_ids[:count])
            resume = inference_pb2.ResumeRequest(request=request, session=1, received=[had])
            events = [found.event async for found in router.Resume(resume)]
            token_ids = [token for event in events for token in event.tokens.token_ids]
            assert (*choice.token_ids[:count], *token_ids) == choice.token_ids
            ended = [event.choice_finished for event in events if event.HasField("choice_finished")]
            assert [end.stop_string for end in ended] == ["\n\n"]


async def test_each_file_names_an_end(served: Served) -> None:
    for name, text in (("end 1", "one"), ("end 2", "two"), ("end 3", "three")):
        found = await served.client.complete(f"a{begin(name)}", sampling=GREEDY, stop=Stop(max_tokens=20))
        (choice,) = found.choices
        assert (choice.text, choice.finish_reason) == (text, FinishReason.EOS)
        assert len(choice.token_ids) == 2, "the text, and the end"


NUM_ROUNDS = 400
NUM_TOKENS = NUM_ROUNDS * len(FLOOD)
FLOODED = " one twé.\n\n" * NUM_ROUNDS


async def num_written(served: Served) -> float:
    """Return how many tokens the workers have written."""
    names = served.fleet.spec.worker_names
    return sum([await metric(served.fleet, name, "baton_output_tokens_total") for name in names])


async def until_all_is_written(served: Served, before: float, num_tokens: int) -> None:
    async def is_written() -> bool:
        return await num_written(served) >= before + num_tokens

    await until(is_written, "the workers have written all of it")


async def test_who_reads_slowly_by_http_gets_every_character(served: Served) -> None:
    body = {
        "messages": [{"role": "user", "content": "#flood"}],
        "temperature": 0,
        "max_tokens": NUM_TOKENS,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 20,
        "stream": True,
    }
    before = await num_written(served)
    small = httpx.AsyncHTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)])
    address = served.fleet.gateway_urls[0]
    async with (
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, transport=small) as slow,
        slow.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        await until_all_is_written(served, before, 2 * NUM_TOKENS)
        assert await metric(served.fleet, "gateway-0", "baton_http_open_streams") == 1, "it has to wait"
        lines = [line async for line in response.aiter_lines()]
    assert lines[-2:] == ["data: [DONE]", ""]
    texts, tokens = ["", ""], [0, 0]
    for chunk in asking.data_of(lines):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
            tokens[choice["index"]] += len((choice["logprobs"] or {}).get("content", ()))
    assert texts == [FLOODED, FLOODED]
    assert tokens == [NUM_TOKENS, NUM_TOKENS]


@pytest.mark.long
async def test_who_reads_slowly_by_grpc_gets_every_character_in_few_events(served: Served) -> None:
    chat = Chat([ChatMessage("user", "#flood")])
    sampling = Sampling(temperature=0, logprobs=20)
    request = request_to_pb(chat, sampling, Stop(max_tokens=NUM_TOKENS), Slo(), request_id="slow")
    small = [("grpc.http2.lookahead_bytes", 4096), ("grpc.http2.bdp_probe", 0)]
    before = await num_written(served)
    async with grpc.aio.insecure_channel(served.fleet.router_addresses[0], options=small) as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
        stream = aiter(call)
        events = [(await anext(stream)).event]
        await until_all_is_written(served, before, NUM_TOKENS)
        events += [found.event async for found in stream]
    batches = [event.tokens for event in events if event.HasField("tokens")]
    assert "".join(batch.text for batch in batches) == FLOODED
    assert sum(len(batch.token_ids) for batch in batches) == NUM_TOKENS
    assert len(batches) < NUM_TOKENS / 2, "what waits is merged"


async def test_what_a_leaving_worker_has_begun_goes_on_to_the_letter(served: Served) -> None:
    chat = Chat([ChatMessage("user", "#flood")])
    for _ in range(TRIES):  # the stream may end before it is known where it runs
        text, left, num_attempts = "", "", 0
        async for event in served.client.generate(chat, sampling=GREEDY, stop=Stop(max_tokens=NUM_TOKENS)):
            if isinstance(event, Finished):
                num_attempts = event.usage.attempts
            if not isinstance(event, Tokens):
                continue
            text += event.text
            if not left:
                left = next(iter(await busy_workers(served.client)), "")
                if left:
                    served.fleet.process(left).terminate()
        assert text == FLOODED
        if left:
            async with asyncio.timeout(PATIENCE_S):
                assert await served.fleet.process(left).wait() == 0
            await served.fleet.revive(left)
        if num_attempts > 1:
            return
    raise AssertionError("no choice was handed over")


@pytest.mark.asyncio
async def test_without_an_end_outputs_go_on(make_fleet: MakeFleet, tmp_path: Path) -> None:
    model = build(tmp_path / "endless", {"one": ["one"]}, ends={})
    spec = FleetSpec(model=model, prefill=0, extra_args={"decode": FEW}, run_dir=tmp_path / "run")
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        found = await client.complete(f"a{begin('one')}", sampling=GREEDY, stop=Stop(max_tokens=7))
        (choice,) = found.choices
        assert (choice.text, choice.finish_reason, len(choice.token_ids)) == ("one", FinishReason.LENGTH, 7)
        assert "no_end_of_sequence" in fleet.process("router-0").log_path.read_text(encoding="utf-8")
