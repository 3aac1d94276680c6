"""What ends a text and what of it is shown, on every path and over the death of a decode worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from baton import AsyncClient, ChoiceFinished, FinishReason, Sampling, Stop, Tokens
from baton.fleet import Fleet, FleetSpec
from tests.fleet.driving import DEMO_MODEL, assert_all_is_freed, snapshot

pytestmark = pytest.mark.integration

ARGS = ("--dtype", "float64", "--num-blocks", "128")
EOS = 1
PROMPT = [3 + i % 90 for i in range(70)]
SAMPLING = Sampling(temperature=1.0, seed=3, repetition_penalty=1.3)
STOP = Stop(max_tokens=160, ignore_eos=True)


async def heard(
    client: AsyncClient, stop: Stop, strike: Callable[[], Awaitable[None]] | None = None
) -> tuple[list[int], str, ChoiceFinished]:
    """All tokens of one generation, its text and its end; `strike` comes after twenty tokens."""
    received: list[int] = []
    text = ""
    ends = []
    async for event in client.generate(PROMPT, sampling=SAMPLING, stop=stop):
        if isinstance(event, Tokens):
            assert event.first_index == len(received)
            received += event.token_ids
            text += event.text
            if len(received) > 20 and strike is not None:
                await strike()
                strike = None
        elif isinstance(event, ChoiceFinished):
            ends.append(event)
    assert strike is None
    [end] = ends
    return received, text, end


async def test_what_ended_a_text_is_said_and_shown_once_whatever_dies(run_dir: Path) -> None:
    placements = {"router-0": ("--placement", "disaggregated"), "router-1": ("--placement", "aggregated")}
    both = FleetSpec(
        model=DEMO_MODEL,
        run_dir=run_dir,
        routers=2,
        decode=2,
        extra_args={"prefill": ARGS, "decode": ARGS, **placements},
    )
    async with Fleet(both) as fleet:
        addresses = fleet.router_addresses
        async with AsyncClient(addresses[0]) as client, AsyncClient(addresses[1]) as aggregated:
            token_ids, text, _ = await heard(client, STOP)
            # Late enough to come after a strike at the twentieth token.
            begin = next(i for i in range(len(text) // 2, len(text)) if text.index(text[i : i + 4]) == i)
            at = next(i for i in range(60, 160) if token_ids.index(token_ids[i]) == i)
            by_string = dataclasses.replace(STOP, strings=("no such text", text[begin : begin + 4]))
            by_token = dataclasses.replace(STOP, token_ids=(token_ids[at],))
            shown = await client.detokenize(token_ids[:at])
            cases = (
                (by_string, text[:begin]),
                (dataclasses.replace(by_string, include_stop=True), text[: begin + 4]),
                (by_token, shown),
                (
                    dataclasses.replace(by_token, include_stop=True),
                    await client.detokenize(token_ids[: at + 1]),
                ),
            )

            async def kill() -> None:
                workers = (await snapshot(client)).workers
                [found] = [one for one in workers if one.worker_id.startswith("decode") and one.running]
                fleet.process(found.worker_id).kill()

            for stop, expected in cases:
                whole = await heard(client, stop)
                found_ids, found_text, end = whole
                assert found_text == expected
                assert found_ids == token_ids[: len(found_ids)]
                assert end.reason is FinishReason.STOP
                assert end.stop_string == (stop.strings[1] if stop.strings else None)
                assert end.stop_token_id == (stop.token_ids[0] if stop.token_ids else None)
                assert await heard(aggregated, stop) == whole
            # A stop string in the text that the killed worker has not reached: text and end come once.
            whole = await heard(client, cases[1][0])
            assert await heard(client, cases[1][0], kill) == whole
            await assert_all_is_freed(fleet, client)


async def test_special_tokens_are_shown_if_asked_for(run_dir: Path) -> None:
    spec = FleetSpec(model=DEMO_MODEL, run_dir=run_dir, extra_args={"prefill": ARGS, "decode": ARGS})
    async with Fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        name = await client.detokenize([EOS], skip_special_tokens=False)
        assert name == "<|eos|>"
        only_eos = Sampling(temperature=0.0, logit_bias={EOS: 100.0})
        for stop, text in (
            (Stop(max_tokens=2, ignore_eos=True), ""),
            (Stop(max_tokens=2, ignore_eos=True, skip_special_tokens=True), ""),
            (Stop(max_tokens=2, ignore_eos=True, skip_special_tokens=False), name * 2),
            (Stop(max_tokens=2, skip_special_tokens=False), ""),
            (Stop(max_tokens=2, skip_special_tokens=False, include_stop=True), name),
        ):
            found = await client.complete(PROMPT, sampling=only_eos, stop=stop)
            assert found.text == text
            assert set(found.choices[0].token_ids) == {EOS}
