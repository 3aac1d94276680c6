"""Many streams at once, every way a choice can end, and nothing held afterwards."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from baton import AsyncClient, ChoiceFinished, Completion, Finished, FinishReason, Sampling, Slo, Stop, Tokens
from baton.errors import DeadlineExceeded
from baton.fleet import FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import BOTH_PATHS, FEW, TRIES, assert_all_is_freed, sampled, snapshot
from tests.model_zoo import VOCAB_SIZE, stock_generate

pytestmark = pytest.mark.integration

FP64 = ("--dtype", "float64", "--num-blocks", "128")


def spec(model: Path, run_dir: Path, **changes: object) -> FleetSpec:
    return FleetSpec(
        model=model,
        run_dir=run_dir,
        placement="disaggregated",
        extra_args={"prefill": FP64, "decode": FP64},
        **changes,  # type: ignore[arg-type]
    )


async def test_64_streams_of_random_lengths_have_exact_token_counts(
    tiny_llama: Path, run_dir: Path, make_fleet: MakeFleet
) -> None:
    rng = random.Random(11)
    lengths = [(rng.randint(1, 90), rng.randint(1, 60)) for _ in range(64)]

    async def one(client: AsyncClient, prompt_length: int, max_tokens: int) -> int:
        prompt = [rng.randrange(3, VOCAB_SIZE) for _ in range(prompt_length)]
        received: list[int] = []
        async for event in client.generate(prompt, stop=Stop(max_tokens=max_tokens, ignore_eos=True)):
            if isinstance(event, Tokens):
                assert event.first_index == len(received)
                received += event.token_ids
            elif isinstance(event, Finished):
                assert event.usage.output_tokens == len(received)
                assert event.usage.prompt_tokens == prompt_length
        return len(received)

    async with make_fleet(spec(tiny_llama, run_dir)) as fleet, AsyncClient(fleet.router_addresses) as client:
        counts = await asyncio.gather(*(one(client, *length) for length in lengths))
        assert counts == [max_tokens for _, max_tokens in lengths]
        await assert_all_is_freed(fleet, client)


async def test_choices_seeds_and_stop_rules_are_the_same_on_both_paths(
    tiny_llama: Path, run_dir: Path, make_fleet: MakeFleet
) -> None:
    both = FleetSpec(
        model=tiny_llama,
        run_dir=run_dir,
        routers=2,
        extra_args={"prefill": FP64, "decode": FP64, **BOTH_PATHS},
    )
    prompt = list(range(3, 40))
    async with make_fleet(both) as fleet:
        answers = []
        for address in fleet.router_addresses:
            async with AsyncClient(address) as client:
                several = await sampled(client, prompt, 20, seed=5, n=3)
                assert len({choice.token_ids for choice in several.choices}) == 3
                stop_text = several.choices[0].text[7:10]
                stopped = await client.complete(
                    prompt,
                    sampling=Sampling(temperature=1.0, seed=5),
                    stop=Stop(max_tokens=20, strings=[stop_text], ignore_eos=True),
                )
                assert stopped.choices[0].finish_reason is FinishReason.STOP
                assert stopped.text == several.choices[0].text[: several.choices[0].text.index(stop_text)]
                token = several.choices[1].token_ids[4]
                at_token = await client.complete(
                    prompt,
                    sampling=Sampling(temperature=1.0, seed=5, n=3),
                    stop=Stop(max_tokens=20, token_ids=[token], ignore_eos=True),
                )
                single = await client.complete(
                    prompt, sampling=Sampling(temperature=0.0), stop=Stop(max_tokens=1, ignore_eos=True)
                )
                assert single.choices[0].token_ids == tuple(stock_generate(tiny_llama, prompt, 1).tokens)
                answers.append([answer.choices for answer in (several, stopped, at_token, single)])
                await assert_all_is_freed(fleet, client)
        assert answers[0] == answers[1]


async def test_a_cancelled_or_abandoned_stream_frees_what_it_held(
    tiny_llama: Path, run_dir: Path, make_fleet: MakeFleet
) -> None:
    async with make_fleet(spec(tiny_llama, run_dir)) as fleet, AsyncClient(fleet.router_addresses) as client:
        async with client.generate(list(range(3, 50)), stop=Stop(max_tokens=200, ignore_eos=True)) as stream:
            async for event in stream:
                if isinstance(event, Tokens) and event.first_index > 3:
                    break
        await assert_all_is_freed(fleet, client)

        for number in range(TRIES):
            reasons, is_cancelled = await cancelled(client, f"to-cancel-{number}")
            assert reasons == [FinishReason.CANCELLED if is_cancelled else FinishReason.LENGTH]
            await assert_all_is_freed(fleet, client)
            if is_cancelled:
                return
        raise AssertionError("each stream had ended before it was cancelled")


async def cancelled(client: AsyncClient, request_id: str) -> tuple[list[FinishReason], bool]:
    """Cancel a stream at its first tokens. Return how it ended, and whether it ran when it was cancelled."""
    reasons: list[FinishReason] = []
    is_cancelled = False
    stop = Stop(max_tokens=200, ignore_eos=True)
    async for event in client.generate(list(range(3, 50)), stop=stop, request_id=request_id):
        if isinstance(event, Tokens) and event.first_index == 0:
            is_cancelled = await client.cancel(request_id)
        elif isinstance(event, ChoiceFinished):
            reasons.append(event.reason)
    return reasons, is_cancelled


async def test_a_deadline_cuts_off_what_is_not_done(
    tiny_llama: Path, run_dir: Path, make_fleet: MakeFleet
) -> None:
    async with make_fleet(spec(tiny_llama, run_dir)) as fleet, AsyncClient(fleet.router_addresses) as client:
        found = await cut_off(client)
        assert 0 < len(found.choices[0].token_ids) < 230
        await assert_all_is_freed(fleet, client)


async def cut_off(client: AsyncClient) -> Completion:
    """Return a completion whose deadline passed in its middle: which deadline does depends on the machine."""
    deadline_ms = 150
    for _ in range(TRIES):
        slo = Slo(deadline_ms=deadline_ms)
        try:
            found = await client.complete(
                list(range(3, 20)), stop=Stop(max_tokens=230, ignore_eos=True), slo=slo
            )
        except DeadlineExceeded:
            deadline_ms *= 2
            continue
        if found.choices[0].finish_reason is FinishReason.LENGTH:
            deadline_ms //= 2
            continue
        assert found.choices[0].finish_reason is FinishReason.DEADLINE
        if found.choices[0].token_ids:
            return found
        deadline_ms *= 2
    raise AssertionError("no deadline passed between the first token and the last")


async def test_requests_beyond_the_blocks_wait_and_all_finish(
    tiny_llama: Path, run_dir: Path, make_fleet: MakeFleet
) -> None:
    # 20 blocks of 16 tokens: two requests of 10 blocks fit at a time.
    small = ("--dtype", "float64", "--num-blocks", "20", *FEW)
    extra = {"prefill": small, "decode": small}
    tight = FleetSpec(model=tiny_llama, run_dir=run_dir, placement="disaggregated", extra_args=extra)
    async with make_fleet(tight) as fleet, AsyncClient(fleet.router_addresses) as client:
        stop = Stop(max_tokens=60, ignore_eos=True)
        for _ in range(TRIES):  # all may be served before the queue is looked at
            running = asyncio.gather(*(client.complete([3 + i] * 90, stop=stop) for i in range(8)))
            num_waiting = 0
            while not num_waiting and not running.done():
                num_waiting = (await snapshot(client)).queue.waiting
                await asyncio.sleep(0.01)
            assert all(len(answer.choices[0].token_ids) == 60 for answer in await running)
            await assert_all_is_freed(fleet, client)
            if num_waiting:
                return
        raise AssertionError("no request was seen in the queue")
