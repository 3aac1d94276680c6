"""Outputs in a format: whatever the model says, they validate."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from baton import (
    AsyncClient,
    Chat,
    ChatMessage,
    Grammar,
    JsonObject,
    JsonSchema,
    OneOf,
    Regex,
    Sampling,
    Stop,
    message_of,
)
from baton.errors import InvalidRequest
from baton.types import FinishReason, OutputFormat
from tests.fleets import NewFleet

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "role": {"enum": ["admin", "user"]},
    },
    "required": ["name", "age", "role"],
    "additionalProperties": False,
}
WILD = Sampling(temperature=5.0, seed=3)
OF_CHATS = {"router": ("--reasoning-format", "think")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(new_fleet: NewFleet) -> AsyncIterator[AsyncClient]:
    async with (
        new_fleet(placement="disaggregated", extra_args=OF_CHATS) as fleet,
        AsyncClient(fleet.router_addresses) as found,
    ):
        yield found


async def outputs(client: AsyncClient, output_format: OutputFormat, n: int = 4) -> list[str]:
    """The texts of some very random choices, each of which ended by itself."""
    completion = await client.complete(
        "Once",
        sampling=Sampling(temperature=5.0, seed=3, n=n),
        stop=Stop(max_tokens=200),
        output_format=output_format,
    )
    assert {choice.finish_reason for choice in completion.choices} == {FinishReason.EOS}
    return [choice.text for choice in completion.choices]


async def test_every_choice_validates(client: AsyncClient) -> None:
    for text in await outputs(client, JsonSchema(PERSON)):
        person = json.loads(text)
        assert set(person) == {"name", "age", "role"}
        assert 0 <= person["age"] <= 150
        assert len(person["name"]) <= 12
        assert person["role"] in {"admin", "user"}


async def test_expressions_grammars_and_texts_to_choose_from(client: AsyncClient) -> None:
    assert all(
        re.fullmatch("[a-c]{2,5}-[0-9]{3}", text)
        for text in await outputs(client, Regex("[a-c]{2,5}-[0-9]{3}"))
    )
    assert set(await outputs(client, OneOf(['say "no"', "yes"]))) <= {'say "no"', "yes"}
    for nested in (Grammar('start: "(" start ")" | "x"'), Grammar('root ::= "(" root ")" | "x"')):
        assert all(
            re.fullmatch(r"\(*x\)*", text) and text.count("(") == text.count(")")
            for text in await outputs(client, nested)
        )


async def test_an_object_that_is_cut_off_was_one_so_far(client: AsyncClient) -> None:
    completion = await client.complete(
        "Once", sampling=WILD, stop=Stop(max_tokens=6), output_format=JsonObject()
    )
    assert completion.text.startswith("{")


async def test_formats_and_free_texts_share_a_batch(client: AsyncClient) -> None:
    alone = await client.complete(
        "import asyncio", sampling=Sampling(temperature=0), stop=Stop(max_tokens=30)
    )
    formatting = asyncio.gather(*(outputs(client, JsonSchema(PERSON)) for _ in range(4)))
    beside = await client.complete(
        "import asyncio", sampling=Sampling(temperature=0), stop=Stop(max_tokens=30)
    )
    formatted = await formatting
    assert beside.text == alone.text
    assert formatted == [formatted[0]] * 4


async def test_greedy_output_is_what_the_model_likes_best_among_the_allowed(client: AsyncClient) -> None:
    completion = await client.complete(
        "The answer is",
        sampling=Sampling(temperature=0, logprobs=5),
        output_format=OneOf(["import", "class"]),
    )
    first = completion.choices[0].logprobs[0]
    assert first.logprob < 0
    assert completion.text in {"import", "class"}


async def test_a_chat_that_thinks_keeps_to_its_format_afterwards(client: AsyncClient) -> None:
    greedy, form = Sampling(temperature=0), OneOf(["yes", "no"])
    said = await client.complete(
        Chat([ChatMessage("user", "Is it?")]), sampling=Sampling(seed=3, n=4), output_format=form
    )
    messages = [message_of(said, choice.index) for choice in said.choices]
    assert all(message.content in {"yes", "no"} or message.reasoning for message in messages)
    # Inside reasoning, the format does not bind yet.
    opened = [ChatMessage("user", "Is it?"), ChatMessage("assistant", "<think>Hm")]
    thinking = Chat(opened, continue_final_message=True)
    free = await client.complete(thinking, sampling=greedy, stop=Stop(max_tokens=8))
    bound = await client.complete(thinking, sampling=greedy, stop=Stop(max_tokens=8), output_format=form)
    assert (bound.text, bound.reasoning_open) == (free.text, True)


REFUSED = [
    (JsonSchema({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf"),
    (JsonSchema({"not": {}}), "not"),
    (JsonSchema({"type": "array", "uniqueItems": True}), "uniqueItems"),
    (JsonSchema({"type": "integer", "minimum": 5, "maximum": 4}), "nothing satisfies it"),
    (JsonSchema({"$ref": "#"}), "describes no text"),
    (JsonSchema('{"type":'), "Expecting value"),
    (JsonSchema({"$ref": "http://127.0.0.1:1/schema"}), "no other document"),
    (Regex("(?=a)"), "look-around"),
    (Regex("(a"), "unclosed"),
    (Grammar("start: missing"), "unknown name"),
    (Grammar("root ::= missing"), "there is no rule 'missing'"),
    (OneOf([]), "at least one"),
]


@pytest.mark.parametrize(("output_format", "why"), REFUSED)
async def test_what_cannot_be_guaranteed_is_refused(
    client: AsyncClient, output_format: OutputFormat, why: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(why)) as refused:
        await client.complete("Once", output_format=output_format)
    assert refused.value.field.startswith("output_format.")


@pytest.mark.parametrize(
    ("sampling", "stop", "field"),
    [
        (Sampling(allowed_token_ids=(1, 2)), Stop(), "sampling.allowed_token_ids"),
        (Sampling(bad_words=("a",)), Stop(), "sampling.bad_words"),
        (Sampling(), Stop(min_tokens=3), "stop.min_tokens"),
        (Sampling(), Stop(ignore_eos=True), "stop.ignore_eos"),
    ],
)
async def test_rules_that_could_contradict_a_format_are_refused(
    client: AsyncClient, sampling: Sampling, stop: Stop, field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await client.complete("Once", sampling=sampling, stop=stop, output_format=JsonObject())
    assert refused.value.field == field


async def test_a_format_that_does_not_compile_in_time_harms_nobody(client: AsyncClient) -> None:
    """The compiler's process ends by its limits; tokenizers, streams and the next format go on."""
    names = [f"p{place}" for place in range(4000)]
    huge = JsonSchema({"type": "object", "properties": {name: {"type": "string"} for name in names}})
    with pytest.raises(InvalidRequest, match="does not compile within"):
        await client.complete("Once", output_format=huge)
    assert (await outputs(client, OneOf(["yes"]), n=1)) == ["yes"]
