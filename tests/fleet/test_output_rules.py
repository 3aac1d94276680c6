"""Everything besides tokens arrives on every path, and survives the death of a decode worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import NoBadWordsLogitsProcessor

from baton import (
    AsyncClient,
    ChoiceFinished,
    Finished,
    FinishReason,
    PromptLogprobs,
    Sampling,
    Stop,
    Tokens,
)
from baton.fleet import Fleet
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import BOTH_PATHS, TRIES, assert_all_is_freed, busy_workers, exact
from tests.fleets import DEMO_MODEL
from tests.model_zoo import load_stock

pytestmark = pytest.mark.integration

EOS = 1
PROMPT = [3 + i % 90 for i in range(70)]
SAMPLING = Sampling(temperature=1.0, seed=3, repetition_penalty=1.3)
STOP = Stop(max_tokens=160, ignore_eos=True)


async def kill_busy(fleet: Fleet, client: AsyncClient) -> list[str]:
    """Kill a decode worker that runs something; return its name, or nothing if none does."""
    killed = (await busy_workers(client))[:1]
    for name in killed:
        fleet.process(name).kill()
    return killed


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


async def heard_struck(
    fleet: Fleet, client: AsyncClient, stop: Stop
) -> tuple[list[int], str, ChoiceFinished]:
    """The same of one whose worker is killed in its middle."""
    killed: list[str] = []

    async def kill() -> None:
        killed.extend(await kill_busy(fleet, client))

    for _ in range(TRIES):
        found = await heard(client, stop, kill)
        if killed:
            return found
    raise AssertionError("each generation had ended before it was known which worker runs it")


async def test_what_ended_a_text_is_said_and_shown_once_whatever_dies(
    run_dir: Path, make_fleet: MakeFleet
) -> None:
    both = exact(run_dir, routers=2, decode=2, more=BOTH_PATHS)
    async with make_fleet(both) as fleet:
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
            assert await heard_struck(fleet, client, cases[1][0]) == whole
            await assert_all_is_freed(fleet, client)


async def test_special_tokens_are_shown_if_asked_for(run_dir: Path, make_fleet: MakeFleet) -> None:
    spec = exact(run_dir)
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
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


@pytest.mark.long
async def test_a_prompt_is_told_once_as_stock_transformers_has_it(
    run_dir: Path, make_fleet: MakeFleet
) -> None:
    both = exact(run_dir, routers=2, decode=2, more={"prefill": ("--token-budget", "16"), **BOTH_PATHS})
    logits = load_stock(DEMO_MODEL)(torch.tensor([PROMPT]), use_cache=False).logits[0].detach()
    expected = torch.log_softmax(logits.double(), dim=-1)[:-1]
    chosen = [expected[place, token].item() for place, token in enumerate(PROMPT[1:])]
    asking = Sampling(temperature=1.0, seed=3, repetition_penalty=1.3, prompt_logprobs=2, n=2)
    alone = dataclasses.replace(asking, prompt_logprobs=None)
    async with make_fleet(both) as fleet:
        addresses = fleet.router_addresses
        async with AsyncClient(addresses[0]) as client, AsyncClient(addresses[1]) as aggregated:
            for asked in (client, aggregated):
                undisturbed = await asked.complete(PROMPT, sampling=alone, stop=STOP)
                # Its prompt is cached now.
                found = await asked.complete(PROMPT, sampling=asking, stop=STOP)
                assert [entry.logprob for entry in found.prompt_logprobs] == pytest.approx(chosen, abs=1e-5)
                for entry, row in zip(found.prompt_logprobs, expected, strict=True):
                    assert [token for token, _ in entry.top] == row.topk(2).indices.tolist()
                assert found.choices == undisturbed.choices
                assert found.finished.usage.cached_prompt_tokens == 0

            for _ in range(TRIES):  # it may end before it is known which worker runs it
                received: dict[int, list[int]] = {0: [], 1: []}
                told: list[float] = []
                killed: list[str] | None = None
                attempts = 0
                async for event in client.generate(PROMPT, sampling=asking, stop=STOP):
                    if isinstance(event, PromptLogprobs):
                        assert event.first_index == 1 + len(told)
                        told += [entry.logprob for entry in event.logprobs]
                    elif isinstance(event, Tokens):
                        assert len(told) == len(chosen)
                        received[event.choice] += event.token_ids
                        if len(received[0]) > 5 and killed is None:
                            killed = await kill_busy(fleet, client)
                    elif isinstance(event, Finished):
                        attempts = event.usage.attempts
                assert told == pytest.approx(chosen, abs=1e-5)
                assert [tuple(received[choice]) for choice in (0, 1)] == [
                    choice.token_ids for choice in undisturbed.choices
                ]
                if killed and attempts >= 2:
                    break
                for name in killed or ():
                    await fleet.revive(name)
            else:
                raise AssertionError("each generation had ended before its worker was killed")
            await assert_all_is_freed(fleet, client)


@pytest.mark.long
async def test_bad_words_and_allowed_tokens_hold_on_both_paths(run_dir: Path, make_fleet: MakeFleet) -> None:
    both = exact(run_dir, routers=2, decode=2, more=BOTH_PATHS)
    async with make_fleet(both) as fleet:
        addresses = fleet.router_addresses
        async with AsyncClient(addresses[0]) as client, AsyncClient(addresses[1]) as aggregated:
            prompt = await client.count_tokens("def add(a, b):\n    return")
            free = (await client.complete(prompt, sampling=Sampling(temperature=0.0), stop=STOP)).text
            word = max((entry for entry in free.split() if entry.isalpha()), key=free.count)
            banning = Sampling(temperature=0.0, bad_words=[word])
            sequences = [await client.count_tokens(entry) for entry in (word, f" {word}")]
            ids = stock_without(prompt, sequences, STOP.max_tokens or 0)
            for asked in (client, aggregated):
                found = await asked.complete(prompt, sampling=banning, stop=STOP)
                assert list(found.choices[0].token_ids) == ids
            digits = [(await client.count_tokens(digit))[0] for digit in "0123456789"]
            only = Sampling(temperature=1.0, seed=1, allowed_token_ids=digits)
            found = await client.complete(prompt, sampling=only, stop=STOP)
            assert set(found.choices[0].token_ids) <= set(digits)
            assert found.text.isdigit()

            killed: list[str] = []
            for _ in range(TRIES):  # it may end before it is known which worker runs it
                received: list[int] = []
                struck = False
                async for event in client.generate(prompt, sampling=banning, stop=STOP):
                    if isinstance(event, Tokens):
                        received += event.token_ids
                        if len(received) > 5 and not struck:
                            struck = True
                            killed = await kill_busy(fleet, client)
                assert received == ids
                if killed:
                    break
            assert killed


def stock_without(prompt: Sequence[int], words: Sequence[Sequence[int]], num_tokens: int) -> list[int]:
    """Return what transformers generates greedily with these bad words, applied to the output alone."""
    no_bad_words = NoBadWordsLogitsProcessor([list(word) for word in words])
    model = load_stock(DEMO_MODEL)
    output: list[int] = []
    while len(output) < num_tokens:
        logits = (
            model(torch.tensor([[*prompt, *output]]), use_cache=False, logits_to_keep=1).logits[0].detach()
        )
        # It leaves alone what is as long as all tokens are: one more at the beginning, which is in no word.
        output.append(int(no_bad_words(torch.tensor([[-1, *output]]), logits).argmax()))
    return output
