"""A client with nothing but generated stubs sees tool calls and reasoning, and resumes them anywhere."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TypeAlias

import grpc.aio
import pytest
import pytest_asyncio

from baton.v1 import generation_pb2, inference_pb2, inference_pb2_grpc
from tests.fleet.driving import FEW
from tests.fleets import NewFleet
from tests.script_model import Script, build

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

WHOLE = (
    '<thi¦nk>So¦, a¦ call.</th¦ink>On¦e.<tool_¦call>{¦"name": ¦"f", "argu¦ments": {"cmd": "é<0xF0><0x9F>¦'
    '<0xA7><0xAD>"¦, "n": 1¦2}}¦</tool_call>¦\nAnd <b>'
)
HALF = '<think>Hm</think><tool_call>{"name": "f", "arguments": {"cmd": "rm¦ -r STOP'
Stub: TypeAlias = "inference_pb2_grpc.InferenceServiceAsyncStub"
Said = list[tuple[str, str]]
"""Deltas as pairs of their kind and what they say, with pieces of the same text joined."""
EXPECTED: Said = [
    ("reasoning", "So, a call."),
    ("content", "One."),
    ("call_begun", "0 f"),
    ("call_arguments", '0 {"cmd": "é🧭", "n": 12}'),
    ("call_ended", "0"),
    ("content", "And <b>"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(new_fleet: NewFleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stub]:
    scripts = {"whole": Script(WHOLE.split("¦")), "half": Script(HALF.split("¦"))}
    model = build(tmp_path_factory.mktemp("plain") / "scripts", scripts, byte_level=True)
    async with (
        new_fleet(model=model, prefill=0, extra_args={"decode": FEW}) as fleet,
        grpc.aio.insecure_channel(fleet.router_addresses[0]) as channel,
    ):
        yield inference_pb2_grpc.InferenceServiceStub(channel)


def request(said: str, request_id: str, **stop: object) -> inference_pb2.GenerateRequest:
    parameters = '{"type": "object", "properties": {"cmd": {"type": "string"}}}'
    return inference_pb2.GenerateRequest(
        request_id=request_id,
        chat=inference_pb2.ChatInput(
            messages=[inference_pb2.ChatMessage(role="user", content=said)],
            tools=[inference_pb2.Tool(name="f", parameters=parameters)],
        ),
        sampling=generation_pb2.SamplingParams(temperature=0, seed=1),
        stop=generation_pb2.StopRules(max_tokens=100, **stop),  # type: ignore[arg-type]
        resume_grace_ms=10_000,
    )


def said_in(deltas: Iterable[inference_pb2.Delta]) -> Said:
    said: Said = []
    for delta in deltas:
        kind = delta.WhichOneof("delta")
        assert kind is not None
        match kind:
            case "call_begun":
                found = f"{delta.call_begun.index} {delta.call_begun.name}"
            case "call_arguments":
                found = f"{delta.call_arguments.index} {delta.call_arguments.text}"
            case "call_ended":
                found = str(delta.call_ended.index)
            case _:
                found = getattr(delta, kind)
        said.append((kind, found))
    return list(_joined(said))


def _joined(said: Said) -> Iterator[tuple[str, str]]:
    for kind, group in itertools.groupby(said, key=lambda pair: pair[0]):
        texts = [text for _, text in group]
        if kind == "call_arguments":
            texts = [texts[0], *(text.removeprefix("0 ") for text in texts[1:])]
        yield kind, "".join(texts)


class Heard:
    """The events of one call."""

    def __init__(self, events: Iterable[inference_pb2.GenerationEvent]) -> None:
        self.token_ids: list[int] = []
        self.deltas: list[inference_pb2.Delta] = []
        self.by_token: list[int] = []
        """How many deltas had come when each token had."""
        for event in events:
            match event.WhichOneof("event"):
                case "accepted":
                    assert event.accepted.has_deltas
                case "tokens":
                    self.token_ids += event.tokens.token_ids
                    self.deltas += event.tokens.deltas
                    self.by_token += [len(self.deltas)] * len(event.tokens.token_ids)
                case "choice_finished":
                    self.deltas += event.choice_finished.deltas
        self.ids = [d.call_begun.id for d in self.deltas if d.HasField("call_begun")]
        self.said = said_in(self.deltas)


async def generated(stub: Stub, asked: inference_pb2.GenerateRequest) -> Heard:
    return Heard([response.event async for response in stub.Generate(asked)])


async def resumed(
    stub: Stub,
    asked: inference_pb2.GenerateRequest,
    session: int,
    token_ids: list[int],
) -> Heard:
    had = inference_pb2.ReceivedTokens(choice=0, token_ids=token_ids)
    resume = inference_pb2.ResumeRequest(request=asked, session=session, received=[had])
    return Heard([response.event async for response in stub.Resume(resume)])


async def test_a_stream_says_calls_and_reasoning(stub: Stub) -> None:
    heard = await generated(stub, request("whole", "seen"))
    assert heard.said == EXPECTED
    assert heard.ids[0].startswith("call_")


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_call_resumed_after_any_token_gets_the_missing_deltas(stub: Stub, *, is_known: bool) -> None:
    """Also where the router knows nothing of the request: then it reads the text of the received tokens."""
    asked = request("whole", f"resumed-{is_known}")
    whole = await generated(stub, asked)
    assert len(whole.token_ids) > 15
    for count in range(len(whole.token_ids) + 1):
        before = whole.by_token[count - 1] if count else 0
        other = asked if is_known else request("whole", f"other-{count}")
        rest = await resumed(stub, other, count + 1, whole.token_ids[:count])
        assert rest.token_ids == whole.token_ids[count:]
        assert rest.said == said_in(whole.deltas[before:]), count
        if is_known and rest.ids:
            assert rest.ids == whole.ids


async def test_many_generations_over_one_call_say_the_same(
    stub: Stub,
) -> None:
    async def asked() -> AsyncIterator[inference_pb2.GenerateManyRequest]:
        for place in range(3):
            yield inference_pb2.GenerateManyRequest(id=place, generate=request("whole", f"many-{place}"))

    deltas: dict[int, list[inference_pb2.Delta]] = {place: [] for place in range(3)}
    async for response in stub.GenerateMany(asked()):
        of_rows = iter(response.tokens.deltas)
        rows = zip(response.tokens.ids, response.tokens.num_deltas, strict=False)
        for place, num_deltas in rows:
            deltas[place] += itertools.islice(of_rows, num_deltas)
        assert not list(of_rows)
        for event in response.events:
            assert event.WhichOneof("event") == "generation"
            deltas[event.id] += event.generation.tokens.deltas
            deltas[event.id] += event.generation.choice_finished.deltas
    assert [said_in(said) for said in deltas.values()] == [EXPECTED] * 3


@pytest.mark.parametrize("stop", [{"stop_strings": ["STOP"]}, {}])
async def test_a_call_that_is_cut_off_has_no_end(stub: Stub, stop: dict[str, list[str]]) -> None:
    heard = await generated(stub, request("half", f"half-{len(stop)}", **stop))
    [thought, begun, (kind, arguments)] = heard.said
    assert (thought, begun) == (("reasoning", "Hm"), ("call_begun", "0 f"))
    assert (kind, arguments.removesuffix("STOP")) == ("call_arguments", '0 {"cmd": "rm -r ')


async def test_a_whole_response_has_the_message_of_the_next_request(
    stub: Stub,
) -> None:
    once = inference_pb2.GenerateOnceRequest(request=request("whole", "once"))
    [choice] = (await stub.GenerateOnce(once)).choices
    message = choice.message
    assert (message.role, message.content, message.reasoning) == ("assistant", "One.And <b>", "So, a call.")
    [call] = message.tool_calls
    assert (call.name, call.arguments) == ("f", '{"cmd": "é🧭", "n": 12}')
    assert choice.text.startswith("<think>So, a call.</think>")
    assert not choice.has_cut_call
    once = inference_pb2.GenerateOnceRequest(request=request("half", "once-half", stop_strings=["STOP"]))
    [choice] = (await stub.GenerateOnce(once)).choices
    assert choice.has_cut_call
    assert [call.arguments for call in choice.message.tool_calls] == ['{"cmd": "rm -r ']


async def test_a_text_alone_is_nothing_but_content(
    stub: Stub,
) -> None:
    asked = request("", "text")
    asked.text = "<S:whole>"
    events = [response.event async for response in stub.Generate(asked)]
    assert not events[0].accepted.has_deltas
    assert not any(event.tokens.deltas or event.choice_finished.deltas for event in events)
    assert "<tool_call>" in "".join(event.tokens.text for event in events)
