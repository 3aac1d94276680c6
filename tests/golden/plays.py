"""Loads on the fleets that are recorded, and faults that strike under them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from baton import AsyncClient, Sampling, Slo, SloClass, Stop, Tokens
from baton.errors import BatonError
from baton.fleet import Fleet
from runtime.state.records import LEASE_TTL_S
from tests.fleet.driving import snapshot, until
from tests.golden.traffic import (
    Mix,
    ask,
    busy_decoder,
    load,
    prompt_of,
    stream_and_strike,
    together,
    until_connected,
)

INTERACTIVE = (Slo(slo_class=SloClass.INTERACTIVE), Slo(ttft_ms=150, slo_class=SloClass.INTERACTIVE))
BATCH = Slo(slo_class=SloClass.BATCH)
USUAL = Mix()


async def steady(fleet: Fleet, client: AsyncClient, *, per_s: float = 12.0, mix: Mix = USUAL) -> None:
    await load(client, per_s, 5.0, 1, mix)


async def tenants(fleet: Fleet, client: AsyncClient) -> None:
    mix = Mix(prompt=(2000, 7000), output=(4, 12), slos=(Slo(ttft_ms=1500),))
    async with (
        AsyncClient(fleet.router_addresses, tenant="big") as big,
        AsyncClient(fleet.router_addresses[::-1], tenant="small") as small,
    ):
        await together(load(big, 18, 6, 1, mix), load(small, 3, 6, 2, mix))


async def deaths(fleet: Fleet, client: AsyncClient) -> None:
    async def kill(name: str) -> None:
        fleet.process(name).kill()
        await asyncio.sleep(0.5)
        await fleet.revive(name)
        await until_connected(client, 4)

    async def strikes() -> None:
        await asyncio.sleep(1.5)
        await kill((await busy_decoder(fleet, client)).name)
        await kill("prefill-0")

    mix = Mix(prompt=(100, 600), output=(20, 60), slos=(Slo(), Slo(ttft_ms=2000)))
    await together(load(client, 8, 9, 1, mix), strikes())


async def broken_promises(fleet: Fleet, client: AsyncClient) -> None:
    """Most of the fleet dies while accepted requests wait."""

    async def strike() -> None:
        await asyncio.sleep(2.5)
        for number in range(1, 5):
            fleet.process(f"decode-{number}").kill()

    mix = Mix(prompt=(3000, 7000), output=(4, 10), slos=(Slo(ttft_ms=1500), Slo(ttft_ms=900)))
    await together(load(client, 60, 3, 1, mix), strike())


async def router_dies(fleet: Fleet, client: AsyncClient) -> None:
    async def strike() -> None:
        await asyncio.sleep(2)
        fleet.process("router-0").kill()

    await together(load(client, 10, 4, 1, Mix(output=(40, 120))), strike())


async def router_leaves(fleet: Fleet, client: AsyncClient) -> None:
    async def strike() -> None:
        await asyncio.sleep(2)
        fleet.process("router-0").terminate()

    async def plain() -> None:
        """A client that is told nothing of other routers stays until its router stops."""
        async with AsyncClient(fleet.process("router-0").address) as alone:
            await ask(alone, 40, 2500, 77)

    await together(load(client, 8, 4, 1, Mix(output=(40, 120))), strike(), plain())


async def drains(fleet: Fleet, client: AsyncClient) -> None:
    async def strike() -> None:
        (await busy_decoder(fleet, client)).terminate()

    async def ask_to_drain() -> None:
        await client.drain((await busy_decoder(fleet, client)).name)

    await together(load(client, 4, 1, 1, Mix(n=(1, 2))), stream_and_strike(client, 300, 200, 5, strike))
    await together(load(client, 4, 1, 2, Mix(n=(1, 2))), stream_and_strike(client, 300, 200, 6, ask_to_drain))
    await load(client, 8, 1, 3, Mix())


async def target_dies(fleet: Fleet, client: AsyncClient) -> None:
    """The worker that is to take over is stopped, then killed."""

    async def strike() -> None:
        leaving = (await busy_decoder(fleet, client)).name
        target = fleet.process(min({"decode-0", "decode-1", "decode-2"} - {leaving}))
        target.pause()
        fleet.process(leaving).terminate()

        async def is_known() -> bool:
            return any(worker.draining for worker in (await snapshot(client)).workers)

        await until(is_known, "the router knows")
        target.kill()

    await stream_and_strike(client, 300, 300, 5, strike)


async def redis_away(fleet: Fleet, client: AsyncClient) -> None:
    async def strike() -> None:
        await asyncio.sleep(1.5)
        fleet.process("redis").kill()
        await asyncio.sleep(1.5)
        await fleet.revive("redis")

    mix = Mix(output=(40, 150), slos=(Slo(), Slo(ttft_ms=1500)), n=(1, 2))
    long = [ask(client, 60, 1500, 70 + number) for number in range(3)]
    await together(load(client, 8, 5, 1, mix), strike(), *long)


async def redis_stands_still(fleet: Fleet, client: AsyncClient) -> None:
    async def strike() -> None:
        await asyncio.sleep(1.5)
        fleet.process("redis").pause()
        await asyncio.sleep(2.5)
        fleet.process("redis").resume()

    async def cancels() -> None:
        await asyncio.sleep(2)
        for number in range(4):
            with contextlib.suppress(BatonError):
                await client.cancel(f"cancelled-{number}")

    asked = [ask(client, 100, 400, 50 + number, request_id=f"cancelled-{number}") for number in range(4)]
    await together(load(client, 10, 5, 1, Mix(output=(40, 150))), strike(), cancels(), *asked)


async def router_stands_still(fleet: Fleet, client: AsyncClient) -> None:
    """The router stands still for so long that what it holds expires."""

    async def strike() -> None:
        await asyncio.sleep(1.5)
        fleet.process("router-0").pause()
        await asyncio.sleep(LEASE_TTL_S + 1)
        fleet.process("router-0").resume()

    await together(strike(), *[ask(client, 60, 1900, number) for number in range(8)])


async def seats_taken(fleet: Fleet, client: AsyncClient) -> None:
    """Batch work has all seats when interactive requests come."""
    batch = [ask(client, 60, 1400, number, slo=BATCH) for number in range(4)]

    async def interactive() -> None:
        await asyncio.sleep(0.5)
        await load(client, 4, 2, 2, Mix(slos=INTERACTIVE, output=(4, 12)))

    await together(*batch, interactive())


async def too_little_memory(fleet: Fleet, client: AsyncClient) -> None:
    """Outputs grow far longer than all before them, so that too many are let in for the blocks."""

    async def one(number: int, stop: Stop) -> None:
        await _complete(client, prompt_of(60, number), Sampling(seed=number), stop)

    soon = Stop(max_tokens=300, token_ids=tuple(range(0, 2000, 16)))
    await together(*(one(number, soon) for number in range(40)))
    await together(*(one(number, Stop(max_tokens=200)) for number in range(100, 112)))


async def refusals(fleet: Fleet, client: AsyncClient) -> None:
    slos = (
        Slo(ttft_ms=500), Slo(ttft_ms=700, tpot_ms=20), Slo(ttft_ms=400, itl_ms=60),
        Slo(ttft_ms=1, tpot_ms=1), Slo(ttft_ms=300, allow_at_risk=True),
        Slo(ttft_ms=600, slo_class=SloClass.INTERACTIVE), Slo(ttft_ms=3000, slo_class=SloClass.BATCH),
        Slo(deadline_ms=2500),
    )  # fmt: skip
    mix = Mix(prompt=(1000, 7000), output=(4, 30), slos=slos)
    await together(load(client, 30, 6, 1, mix), _quotes(client, 15, slos))


async def _quotes(client: AsyncClient, count: int, slos: tuple[Slo, ...]) -> None:
    for number in range(count):
        await asyncio.sleep(0.4)
        with contextlib.suppress(BatonError):
            await client.quote(prompt_of(500 * (number % 8 + 1), number), slo=slos[number % len(slos)])


async def sheds(fleet: Fleet, client: AsyncClient) -> None:
    """Callers who would rather be late than refused are put behind others; the queue can be full."""
    at_risk = (Slo(ttft_ms=600, allow_at_risk=True), Slo(ttft_ms=1500, allow_at_risk=True))
    mix = Mix(prompt=(200, 7000), output=(4, 12), slos=(*at_risk, *at_risk, Slo(ttft_ms=900), BATCH))
    burst = [ask(client, 1500, 4, 9000 + number) for number in range(60)]
    await load(client, 16, 5, 1, mix)
    await together(*burst)


async def oddities(fleet: Fleet, client: AsyncClient) -> None:
    """Cancels, gone clients, calls sent twice, deadlines, several choices, too large requests."""

    async def gone() -> None:
        async for event in client.generate(prompt_of(50, 1), stop=Stop(max_tokens=400, ignore_eos=True)):
            if isinstance(event, Tokens) and event.first_index > 10:
                return

    async def cancelled(number: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await client.cancel(f"request-{number}")

    async def twice(after_s: float) -> None:
        await asyncio.sleep(after_s)
        await ask(client, 80, 200, 9, request_id="twice")

    async def other_content() -> None:
        await asyncio.sleep(0.5)
        await ask(client, 81, 200, 9, request_id="twice")

    asked = [ask(client, 100, 300, n, request_id=f"request-{n}", n=1 + n % 3) for n in range(4)]
    await together(
        *asked, *(cancelled(number, 0.2 * (number + 1)) for number in range(5)), gone(), twice(0.0),
        twice(0.4), other_content(), twice(2.0), ask(client, 100, 2000, 20, slo=Slo(deadline_ms=900)),
        ask(client, 3000, 3000, 21), load(client, 8, 2, 3, Mix(n=(1, 3))),
    )  # fmt: skip


async def slow_prompts(fleet: Fleet, client: AsyncClient) -> None:
    """Few tokens a step: workers die, and requests end, in the middle of a prompt."""

    async def strike() -> None:
        await asyncio.sleep(0.5)
        fleet.process("prefill-1").kill()
        await client.cancel("cancelled")

    asked = [ask(client, 400, 20, number) for number in range(5)]
    await together(*asked, ask(client, 400, 20, 8, request_id="cancelled"), strike())


async def real_model(fleet: Fleet, client: AsyncClient) -> None:
    async def one(text: str, sampling: Sampling, stop: Stop) -> None:
        with contextlib.suppress(BatonError):
            await client.complete(text, sampling=sampling, stop=stop)

    code = "def add(a, b):\n    return"
    await together(
        one(code, Sampling(seed=1, n=3, temperature=0.9, top_p=0.95, logprobs=2), Stop(max_tokens=40)),
        one(code, Sampling(seed=2, temperature=0.0, prompt_logprobs=2), Stop(max_tokens=20)),
        one("import os", Sampling(seed=3, presence_penalty=0.3), Stop(max_tokens=60, strings=("\n",))),
        one("class A", Sampling(seed=4), Stop(max_tokens=30, min_tokens=5, token_ids=(20, 30, 40))),
        load(client, 5, 3, 1, Mix(prompt=(10, 150), output=(4, 30))),
    )


async def adapters(fleet: Fleet, client: AsyncClient) -> None:
    async def one_by_one(name: str, first: int) -> None:
        for number in range(first, first + 8):
            slo = Slo(ttft_ms=4000) if number % 2 else Slo()
            await ask(client, 60, 12, number, adapter=name, slo=slo)

    with contextlib.suppress(BatonError):
        await client.quote(prompt_of(60, 1), slo=Slo(ttft_ms=4000), adapter="red")
    await together(one_by_one("red", 100), one_by_one("blue", 200), one_by_one("", 300))


async def real_model_dies(fleet: Fleet, client: AsyncClient) -> None:
    async def strike() -> None:
        (await busy_decoder(fleet, client)).kill()

    sampling = Sampling(seed=1, n=2, logprobs=1, prompt_logprobs=1)
    stop = Stop(max_tokens=60, ignore_eos=True)
    await together(
        stream_and_strike(client, 70, 120, 3, strike),
        _complete(client, prompt_of(60, 2), sampling, stop),
    )


async def _complete(client: AsyncClient, prompt: list[int], sampling: Sampling, stop: Stop) -> None:
    with contextlib.suppress(BatonError):
        await client.complete(prompt, sampling=sampling, stop=stop)


async def nobody_decodes(fleet: Fleet, client: AsyncClient) -> None:
    async def strike() -> None:
        await asyncio.sleep(1)
        fleet.process("decode-0").kill()
        await asyncio.sleep(1.5)
        await fleet.revive("decode-0")

    mix = Mix(output=(40, 100), slos=(Slo(), Slo(ttft_ms=300), Slo(ttft_ms=5000)))
    await together(load(client, 6, 4, 1, mix), strike())


async def held(fleet: Fleet, client: AsyncClient) -> None:
    async def strike() -> None:
        await asyncio.sleep(1)
        os.kill(fleet.process("decode-0").pid, signal.SIGUSR1)

    await together(load(client, 6, 5, 1, Mix(output=(40, 100))), strike())


async def stands_still(fleet: Fleet, client: AsyncClient) -> None:
    async def strike() -> None:
        await asyncio.sleep(1)
        process = await busy_decoder(fleet, client)
        process.pause()
        await asyncio.sleep(2)
        process.resume()

    await together(load(client, 6, 5, 1, Mix(output=(40, 100))), strike())
