"""A process is told to leave in mid-stream: what it had goes on elsewhere, as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from baton import AsyncClient, ChoiceFinished, Finished, Sampling, Stop, Tokens
from baton.fleet import Fleet, FleetSpec
from baton.fleet.running import Control, ask_restart
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import (
    TRIES,
    assert_all_is_freed,
    busy_workers,
    exact,
    labelled,
    snapshot,
)
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

PROMPT = [3 + i % 90 for i in range(70)]
STRUCK_AT = 20
SAMPLING = Sampling(
    temperature=1.0, seed=3, n=2, logprobs=2, repetition_penalty=1.3, presence_penalty=0.5, top_p=0.95
)
STOP = Stop(max_tokens=160, ignore_eos=True)
# Logprobs are 32-bit floats; a recomputed KV differs in the last bits of 64.
LOGPROB_TOLERANCE = 1e-5


def spec(run_dir: Path, **counts: Any) -> FleetSpec:
    return exact(
        run_dir,
        placement="disaggregated" if counts.get("prefill", 1) else None,
        standstill_s=150.0,
        drain_s=PATIENCE_S,
        **counts,
    )


@dataclass
class Heard:
    """All that one generation said, by choice."""

    token_ids: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    finished: Finished | None = None

    def take(self, event: object) -> None:
        if isinstance(event, Tokens):
            known = self.token_ids.setdefault(event.choice, [])
            assert event.first_index == len(known), "a token was lost or repeated"
            known += event.token_ids
            self.texts[event.choice] = self.texts.get(event.choice, "") + event.text
            self.logprobs.setdefault(event.choice, []).extend(token.logprob for token in event.logprobs)
        elif isinstance(event, ChoiceFinished):
            self.ends[event.choice] = event.reason.name
        elif isinstance(event, Finished):
            self.finished = event

    def assert_like(self, other: Heard) -> None:
        assert self.token_ids == other.token_ids
        assert self.texts == other.texts
        assert self.ends == other.ends
        for choice, logprobs in self.logprobs.items():
            assert logprobs == pytest.approx(other.logprobs[choice], abs=LOGPROB_TOLERANCE)


async def generation(
    client: AsyncClient,
    strike: Callable[[], Awaitable[None]] | None = None,
    *,
    stop: Stop = STOP,
) -> Heard:
    """One generation; `strike` comes once index `STRUCK_AT` of a choice is there."""
    heard = Heard()
    async for event in client.generate(PROMPT, sampling=SAMPLING, stop=stop):
        heard.take(event)
        if strike is not None and len(heard.token_ids.get(0, ())) > STRUCK_AT:
            now, strike = strike, None
            await now()
    assert strike is None, "it ended before the strike"
    assert heard.finished is not None
    return heard


async def handoffs(fleet: Fleet, process: str) -> float:
    """Handoffs that this process has sent or received whole."""
    outcomes = await labelled(fleet, process, "baton_kv_handoffs_total", "outcome")
    return outcomes.get("completed", 0.0) + outcomes.get("acknowledged", 0.0)


@pytest.mark.long
async def test_a_draining_decode_worker_hands_its_choices_over(run_dir: Path, make_fleet: MakeFleet) -> None:
    """The first that is to take them over is killed at it; the next one gets them."""
    async with (
        make_fleet(spec(run_dir, prefill=0, decode=3)) as fleet,
        AsyncClient(fleet.router_addresses) as client,
    ):
        long = Stop(max_tokens=400, ignore_eos=True)  # so that it lasts until the second target has it
        free = await generation(client, stop=long)
        # A stop string of which a part was said before: it ends the first choice where it did.
        text = free.texts[0]
        at = len(text) * 3 // 4
        stop = replace(long, strings=(text[at : at + 12],))
        expected = await generation(client, stop=stop)
        assert expected.ends[0] == "STOP"
        names = {"decode-0", "decode-1", "decode-2"}
        left: list[str] = []
        """The one that leaves, the one that is killed, and the one that stays."""
        num_before = 0.0

        async def drain() -> None:
            nonlocal num_before
            left[:] = (await busy_workers(client))[:1]
            if not left:
                return
            left.extend(sorted(names - set(left)))
            num_before = await handoffs(fleet, left[2])
            leaving, target = (fleet.process(name) for name in left[:2])
            target.pause()
            leaving.terminate()
            while leaving.running and not any(worker.draining for worker in (await snapshot(client)).workers):
                await asyncio.sleep(0.02)
            target.kill()

        for _ in range(TRIES):
            found = await generation(client, drain, stop=stop)
            found.assert_like(expected)
            assert found.finished is not None
            if left:
                leaving, _, staying = (fleet.process(name) for name in left)
                async with asyncio.timeout(PATIENCE_S):
                    assert await leaving.wait() == 0
                # Its KV went over, twice for each choice: what was there, and what was written since.
                num_received = await handoffs(fleet, staying.name) - num_before
                if found.finished.usage.attempts >= 2 and num_received >= 2 * len(found.token_ids):
                    break
            # Its choices had ended before, or the one that stays was starved until it was given up.
            for name in left[:2]:
                await fleet.revive(name)
        else:
            raise AssertionError("no KV was handed over")
        await assert_all_is_freed(fleet, client)


async def test_a_leaving_prefill_worker_hands_back_what_it_has_not_begun(
    run_dir: Path, make_fleet: MakeFleet
) -> None:
    slow = exact(run_dir, placement="disaggregated", prefill=2, more={"prefill": ("--token-budget", "2")})
    prompts = [[3 + (i * 7 + offset) % 90 for i in range(200)] for offset in range(4)]
    short = Stop(max_tokens=3, ignore_eos=True)
    async with (
        make_fleet(slow) as fleet,
        AsyncClient(fleet.router_addresses, tenant="undisturbed") as other,
    ):
        expected = [await other.complete(prompt, sampling=SAMPLING, stop=short) for prompt in prompts]
        for number in range(1, TRIES):  # they may be computed before it is known where, or by one alone
            async with AsyncClient(fleet.router_addresses, tenant=f"leaving-{number}") as client:
                answers = asyncio.gather(
                    *(client.complete(prompt, sampling=SAMPLING, stop=short) for prompt in prompts * number)
                )
                both_compute = False
                while not both_compute and not answers.done():
                    await asyncio.sleep(0.01)
                    workers = (await snapshot(client)).workers
                    both_compute = all(
                        worker.pending_prefill_tokens > 0
                        for worker in workers
                        if "prefill" in worker.worker_id
                    )
                if both_compute:
                    fleet.process("prefill-0").terminate()
                found = await answers
            assert [answer.choices for answer in found] == [answer.choices for answer in expected] * number
            if both_compute:
                break
        assert both_compute, "prompts on both"
        assert await fleet.process("prefill-0").wait() == 0
        await assert_all_is_freed(fleet, other)


@pytest.mark.long
async def test_a_router_and_an_only_decode_worker_leave(run_dir: Path, make_fleet: MakeFleet) -> None:
    """Resumable streams are sent on, others served; the worker's successor is there before it goes."""
    async with make_fleet(spec(run_dir, routers=2)) as fleet:
        first, second = fleet.router_addresses
        async with (
            AsyncClient(first, resume_grace_s=0) as plain,
            AsyncClient(second) as other,
        ):
            long = Stop(max_tokens=400, ignore_eos=True)
            expected = await generation(other, stop=long)
            for _ in range(TRIES):  # either stream may end before its router is told to leave
                began = asyncio.Event()

                async def is_under_way(began: asyncio.Event = began) -> None:
                    began.set()

                stayed = asyncio.create_task(generation(plain, is_under_way, stop=long))
                await began.wait()
                heard = Heard()
                struck = runs_on = False
                async with AsyncClient((first, second)) as moving:  # begins with the router that will leave
                    stream = moving.generate(PROMPT, sampling=SAMPLING, stop=long)
                    async for event in stream:
                        heard.take(event)
                        if len(heard.token_ids.get(0, ())) >= 10 and not struck:
                            struck, runs_on = True, not stayed.done()
                            fleet.process("router-0").terminate()
                heard.assert_like(expected)
                (await stayed).assert_like(expected)
                assert await fleet.process("router-0").wait() == 0
                if stream.resumes == 1 and runs_on:
                    break
                await fleet.revive("router-0")
            else:
                raise AssertionError("each stream had ended before its router was told to leave")

            running = asyncio.create_task(generation(other, stop=long))
            await fleet.replace("decode-0")
            (await running).assert_like(expected)
            await assert_all_is_freed(fleet, other)


async def test_a_rolling_restart_under_load_breaks_no_stream(run_dir: Path, make_fleet: MakeFleet) -> None:
    counts = {"routers": 2, "prefill": 2, "decode": 2}
    control = Control(lambda event: None)
    async with (
        make_fleet(spec(run_dir, **counts), control) as fleet,
        control.serving(fleet),
        AsyncClient(fleet.router_addresses) as client,
    ):
        before = {process.name: process.pid for process in fleet.processes}
        expected = await generation(client)
        over = asyncio.Event()
        num_streams = 0

        async def load() -> None:
            nonlocal num_streams
            while not over.is_set():
                (await generation(client)).assert_like(expected)
                num_streams += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(load())
            replaced = [entry.name async for entry in ask_restart(run_dir)]
            over.set()
        assert sorted(replaced) == sorted(fleet.spec.process_names)
        after = {process.name: process.pid for process in fleet.processes}
        assert [name for name in before if before[name] == after[name]] == ["redis"]
        assert num_streams >= 2
        await assert_all_is_freed(fleet, client)
