"""Every family's calls and reasoning, written by a model to the letter: each API tells what the script says.

One fleet has a router for each family. Its model has a byte-level tokenizer and the families' markers as
special tokens, and writes them as such or as text, in tokens that end anywhere, inside characters too.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import pytest_asyncio

from baton import (
    AsyncClient,
    Chat,
    ChatMessage,
    ChoiceDelta,
    ContentDelta,
    ReasoningDelta,
    Sampling,
    Stop,
    Tool,
    ToolCallArguments,
    ToolCallBegun,
    message_of,
)
from baton.fleet import Fleet
from tests.fleet.asking import events, post
from tests.fleet.driving import FEW
from tests.fleets import NewFleet
from tests.forked import Zygote
from tests.patience import PATIENCE_S
from tests.script_model import Script, build
from tests.zygote import Order
from tools.house.source_tree import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Told:
    """The content, reasoning and calls of an output."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True)
class Written:
    """How a model of a family writes something; "¦" stands between tokens."""

    family: str
    text: str
    says: Told
    opens: str = ""


SPECIAL = (
    *("<|python_tag|>", "<|eom_id|>", "<|python_start|>", "<|python_end|>"),
    *("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<|tool_call|>", "<|/tool_call|>"),
    *("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"),
)
FAMILIES = {
    "granite": "granite",
    "harmony": "harmony",
    "hermes": "think",
    "llama3_json": "none",
    "mistral": "mistral",
    "phi4": "think",
    "pythonic": "none",
    "qwen3_coder": "think",
}
"""Formats of reasoning by those of calls."""
WRITTEN = {
    "granite in words": Written(
        "granite",
        "Here is my tho¦ught process:¦ Thinking <tool¦_call> of granite.\nHere is my resp¦"
        'onse:\nSaid in granite. <|tool_c¦all|>[{"name": "f", "argum¦'
        'ents": {"cmd": "gran<0xF0><0x9F>¦'
        '<0xA7><0xAD>ite"}}, {"name": "g", "arguments": {"n": -1.5e3, "on": ¦true}}]',
        Told(
            "Said in granite.",
            "Thinking <tool_call> of granite.",
            [("f", {"cmd": "gran🧭ite"}), ("g", {"n": -1500, "on": True})],
        ),
    ),
    "granite in tags": Written(
        "granite",
        "<thi¦nk>One granite.</th¦ink><resp¦onse>Two granite.</respo¦nse>",
        Told("Two granite.", "One granite."),
    ),
    "harmony by tokens": Written(
        "harmony",
        "Well <¦| we¦ll.¦<|end|>¦<|start|>¦assistant¦<|channel|>¦commentary to=func¦tions.f ¦"
        '<|constrain|>¦json¦<|message|>¦{"cmd": "har¦mony<0xF0>¦<0x9F><0xA7><0xAD>"}¦<|call|>',
        Told("", "Well <| well.", [("f", {"cmd": "harmony🧭"})]),
        opens="<|channel|>analysis<|message|>",
    ),
    "harmony as text": Written(
        "harmony",
        "<|chan¦nel|>analysis<|mess¦age|>Thinking har¦mony.<|e¦nd|><|start|>assis¦"
        "tant<|channel|>fin¦al<|message|>Saying <0xC3>¦<0xA9> har¦mony.\n\nOver.<|ret¦urn|>",
        Told("Saying é harmony.\n\nOver.", "Thinking harmony."),
    ),
    "hermes": Written(
        "hermes",
        "<think¦>\nHm her¦mes.\n</thi¦nk>\n\nFirst¦.\n<tool_ca¦"
        'll>\n{"name": "g", "arguments": {"n": [1, {"a": nul¦l}]}}\n</tool_call¦>\nSecond.\n<tool¦'
        '_call>{"name": "f", "arguments": {"cmd": "\\u00¦e9\\n"}}</tool¦_call>',
        Told("First.Second.", "Hm hermes.", [("g", {"n": [1, {"a": None}]}), ("f", {"cmd": "é\n"})]),
    ),
    "llama by token": Written(
        "llama3_json",
        'Of llama.¦<|python_tag|>¦{"name": "f", "par¦ameters": {"cmd": "<0xF0><0x9F><0xA7>¦'
        '<0xAD>"}}¦<|eom_id|>',
        Told("Of llama.", "", [("f", {"cmd": "🧭"})]),
    ),
    "llama bare": Written(
        "llama3_json",
        '{"na¦me": "f", "parameters": {"cmd": "{lla¦ma}"}}; {"name": "g", "parameters": {"on": fal¦se}¦}',
        Told("", "", [("f", {"cmd": "{llama}"}), ("g", {"on": False})]),
    ),
    "llama says json": Written(
        "llama3_json", '{"name": "unkn¦own", "parameters": {}}', Told('{"name": "unknown", "parameters": {}}')
    ),
    "mistral by tokens": Written(
        "mistral",
        '[THINK]¦Oh mist¦ral.¦[/THINK]¦Ah mis¦tral.¦[TOOL_CALLS]¦f¦[ARGS]¦{"cmd": "mis¦tral"}',
        Told("Ah mistral.", "Oh mistral.", [("f", {"cmd": "mistral"})]),
    ),
    "mistral as text": Written(
        "mistral",
        '[TOOL_CA¦LLS] [{"name": "g", "arguments": {"n": 12¦34}}, {"na¦'
        'me": "f", "arguments": {"cmd": "a]"}}¦]',
        Told("", "", [("g", {"n": 1234}), ("f", {"cmd": "a]"})]),
    ),
    "mistral [TOOL": Written("mistral", "Half a [TO¦OL_CAL", Told("Half a [TOOL_CAL")),
    "phi": Written(
        "phi4",
        '<think>¦For phi¦.</think>Now¦ phi.¦<|tool_call|>¦[{"name": "f", "arguments": {"cmd": "p¦'
        'hi"}}]¦<|/tool_call|>',
        Told("Now phi.", "For phi.", [("f", {"cmd": "phi"})]),
    ),
    "pythonic bare": Written(
        "pythonic",
        "[f(cm¦d='it\\'s <0xF0><0x9F>¦<0xA7><0xAD>'), g(n=¦[1, (2,)], s=\"a\\tb\", on=Tr¦ue)¦]",
        Told("", "", [("f", {"cmd": "it's 🧭"}), ("g", {"n": [1, [2]], "s": "a\tb", "on": True})]),
    ),
    "pythonic by tokens": Written(
        "pythonic",
        "Using pyt¦hon.¦<|python_start|>¦[g(n=No¦ne)]¦<|python_end|>",
        Told("Using python.", "", [("g", {"n": None})]),
    ),
    "qwen": Written(
        "qwen3_coder",
        "<think>\n¦Um coder.\n</think>\n¦\nThen coder.\n<tool¦_call>\n<func¦"
        "tion=f>\n<parameter=cmd>\nls '¦\"<0xF0><0x9F>¦<0xA7><0xAD>\n  </para¦>\n</para¦"
        "meter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n¦<parameter=on>\ntr¦"
        "ue\n</parameter>\n<parameter=s>\n1¦2\n</parameter>\n</function>\n</tool_¦call>",
        Told(
            "Then coder.",
            "Um coder.",
            [("f", {"cmd": "ls '\"🧭\n  </para>"}), ("g", {"on": True, "s": "12"})],
        ),
    ),
}
PARAMETERS = {
    "f": {"type": "object", "properties": {"cmd": {"type": "string"}}},
    "g": {"type": "object", "properties": {"n": {}, "s": {"type": "string"}, "on": {"type": "boolean"}}},
}
MOST_TOKENS = 100


@dataclass(frozen=True)
class Family:
    name: str
    sdk: AsyncClient
    http: httpx.AsyncClient


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(new_fleet: NewFleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    scripts = {
        name: Script(written.text.split("¦"), opens=written.opens) for name, written in WRITTEN.items()
    }
    flags = {
        f"router-{place}": ("--tool-format", tools, "--reasoning-format", reasoning)
        for place, (tools, reasoning) in enumerate(FAMILIES.items())
    }
    model = build(tmp_path_factory.mktemp("scripts") / "model", scripts, special=SPECIAL, byte_level=True)
    async with new_fleet(
        model=model,
        prefill=0,
        routers=len(FAMILIES),
        speculate="lookup",
        extra_args={"decode": FEW, **flags},
    ) as fleet:
        yield fleet


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=FAMILIES)
async def family(
    request: pytest.FixtureRequest, fleet: Fleet, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Family]:
    router = fleet.router_addresses[list(FAMILIES).index(request.param)]
    order = Order("gateway", ("--listen", "127.0.0.1:0", "--router", router), str(ROOT), {})
    with (tmp_path_factory.mktemp("gateway") / "log").open("wb") as log:
        gateway = zygote.fork(order, log)
    with closing(gateway):
        ready = (await asyncio.to_thread(gateway.stdout.readline)).decode()
        found = re.match("READY gateway address=([0-9.:]+) ", ready)
        assert found, ready
        url = f"http://{found[1]}"
        async with AsyncClient([router]) as sdk, httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
            yield Family(request.param, sdk, http)


async def told_by_sdk(family: Family, said: str, *, stream: bool) -> Told:
    tools = [Tool(name, parameters=schema) for name, schema in PARAMETERS.items()]
    chat, stop = Chat([ChatMessage("user", said)], tools=tools), Stop(max_tokens=MOST_TOKENS)
    if not stream:
        found = await family.sdk.complete(chat, sampling=Sampling(temperature=0), stop=stop)
        message = message_of(found)
        calls = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
        assert isinstance(message.content, str)
        return Told(message.content, message.reasoning, calls)
    content, reasoning, names, arguments = "", "", list[str](), list[str]()
    async for event in family.sdk.generate(chat, sampling=Sampling(temperature=0), stop=stop).parsed():
        match event:
            case ChoiceDelta(delta=ContentDelta(text)):
                content += text
            case ChoiceDelta(delta=ReasoningDelta(text)):
                reasoning += text
            case ChoiceDelta(delta=ToolCallBegun(name=name)):
                names.append(name)
                arguments.append("")
            case ChoiceDelta(delta=ToolCallArguments(index, text)):
                arguments[index] += text
    return Told(content, reasoning, _calls(names, arguments))


async def told_by_chats(family: Family, said: str, *, stream: bool) -> Told:
    functions = [{"name": name, "parameters": schema} for name, schema in PARAMETERS.items()]
    body = {
        "messages": [{"role": "user", "content": said}],
        "temperature": 0,
        "max_tokens": MOST_TOKENS,
        "tools": [{"type": "function", "function": function} for function in functions],
    }
    path = "/v1/chat/completions"
    if not stream:
        message = (await post(family.http, path, body))["choices"][0]["message"]
        called = [call["function"] for call in message.get("tool_calls", ())]
        calls = _calls([call["name"] for call in called], [call["arguments"] for call in called])
        return Told(message["content"] or "", message.get("reasoning_content") or "", calls)
    content, reasoning, names, arguments = "", "", list[str](), list[str]()
    for chunk in await events(family.http, path, body):
        for choice in chunk["choices"]:
            content += choice["delta"].get("content") or ""
            reasoning += choice["delta"].get("reasoning_content") or ""
            for call in choice["delta"].get("tool_calls", ()):
                if "name" in call["function"]:
                    names.append(call["function"]["name"])
                    arguments.append("")
                arguments[call["index"]] += call["function"].get("arguments", "")
    return Told(content, reasoning, _calls(names, arguments))


async def told_by_responses(family: Family, said: str, *, stream: bool) -> Told:
    tools = [
        {"type": "function", "name": name, "parameters": schema, "strict": False}
        for name, schema in PARAMETERS.items()
    ]
    body = {"input": said, "temperature": 0, "max_output_tokens": MOST_TOKENS, "tools": tools, "store": False}
    if not stream:
        items = (await post(family.http, "/v1/responses", body))["output"]
        return _of_items(items)
    heard = await events(family.http, "/v1/responses", body)
    items = [event["item"] for event in heard if event["type"] == "response.output_item.done"]
    assert heard[-1]["response"]["output"] == items
    for kind, key in (("output_text", "text"), ("function_call_arguments", "arguments")):
        for done in (event for event in heard if event["type"] == f"response.{kind}.done"):
            deltas = (event for event in heard if event["type"] == f"response.{kind}.delta")
            same = [event["delta"] for event in deltas if event["item_id"] == done["item_id"]]
            assert "".join(same) == done[key]
    return _of_items(items)


def _of_items(items: Sequence[dict[str, Any]]) -> Told:
    def texts(kind: str) -> str:
        return "".join(part["text"] for item in items if item["type"] == kind for part in item["content"])

    calls = [item for item in items if item["type"] == "function_call"]
    names, arguments = [call["name"] for call in calls], [call["arguments"] for call in calls]
    return Told(texts("message"), texts("reasoning"), _calls(names, arguments))


async def told_by_messages(family: Family, said: str, *, stream: bool) -> Told:
    body = {
        "messages": [{"role": "user", "content": said}],
        "temperature": 0,
        "max_tokens": MOST_TOKENS,
        "tools": [{"name": name, "input_schema": schema} for name, schema in PARAMETERS.items()],
    }
    if not stream:
        blocks = (await post(family.http, "/v1/messages", body))["content"]
    else:
        blocks = list[dict[str, Any]]()
        for event in await events(family.http, "/v1/messages", body):
            match event:
                case {"type": "content_block_start", "content_block": block}:
                    blocks.append(block | ({"input": ""} if block["type"] == "tool_use" else {}))
                case {"type": "content_block_delta", "index": index, "delta": delta}:
                    assert index == len(blocks) - 1
                    for key, more in (
                        ("text", "text"),
                        ("thinking", "thinking"),
                        ("input", "partial_json"),
                    ):
                        if more in delta:
                            blocks[index][key] += delta[more]
        for block in blocks:
            if block["type"] == "tool_use":
                block["input"] = json.loads(block["input"])

    def texts(kind: str) -> str:
        return "".join(block[kind] for block in blocks if block["type"] == kind)

    calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    return Told(texts("text"), texts("thinking"), calls)


def _calls(names: Sequence[str], arguments: Sequence[str]) -> list[Call]:
    return [(name, json.loads(given)) for name, given in zip(names, arguments, strict=True)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("told_by", [told_by_sdk, told_by_chats, told_by_responses, told_by_messages])
async def test_every_api_tells_what_the_model_wrote(family: Family, told_by: Any, stream: bool) -> None:
    of_family = {name: written for name, written in WRITTEN.items() if written.family == family.name}
    assert of_family
    for name, written in of_family.items():
        assert await told_by(family, name, stream=stream) == written.says, name
