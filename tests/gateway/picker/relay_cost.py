"""Measure what a relayed response costs the endpoint picker: `python -m tests.gateway.picker.relay_cost`.

Streams go through Envoy, which sends every piece of them to the picker and back (`envoy/override_host.yaml`).
Each figure is the processor time of the picker's process while they run, for each piece that it sent back and
for each token. Beside it is that of the only gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # ships no annotations

from baton.fleet import Fleet, FleetSpec
from tests.fleet.driving import DEMO_MODEL, until
from tests.gateway.picker.running import Envoy, Picker, running_envoy, running_picker
from tests.gateway.running import Gateway, running_gateway

RELAYED = "http.door.ext_proc.stream_msgs_received"
"""Envoy's count of messages from the picker: the pieces, and three or four others for each stream."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of processor time, and the mean number of tokens in a piece."""

    picker_piece: float
    picker_token: float
    gateway_token: float
    tokens_per_piece: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", default="1,16,64", help="streams at once (1,16,64)")
    parser.add_argument("--tokens", default=200, type=int, help="tokens of a stream (200)")
    parser.add_argument("--rounds", default=5, type=int, help="measurements of each (5)")
    args = parser.parse_args()
    sizes = [int(size) for size in args.streams.split(",")]
    asyncio.run(measure(sizes, args.tokens, args.rounds))


async def measure(sizes: Sequence[int], num_tokens: int, num_rounds: int) -> None:
    """Print a line for each number of streams: medians, and the least and the greatest in brackets."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fleet = await stack.enter_async_context(Fleet(FleetSpec(model=DEMO_MODEL, run_dir=folder / "fleet")))
        routers = fleet.router_addresses
        gateway = await stack.enter_async_context(running_gateway(routers))
        address = gateway.url.removeprefix("http://")
        picker = await stack.enter_async_context(running_picker([address], routers))
        envoy = await stack.enter_async_context(
            running_envoy("override_host", folder, picker.address, [address, address])
        )

        async def serves() -> bool:
            return (await envoy.http.get("/v1/models")).status_code == 200

        await until(serves, "the gateway serves")
        await measured(envoy, picker, gateway, max(sizes), num_tokens)
        for size in sizes:
            costs = [await measured(envoy, picker, gateway, size, num_tokens) for _ in range(num_rounds)]
            shown = "; ".join(
                f"{name} {_range([getattr(cost, name) for cost in costs])}" for name in Cost.__slots__
            )
            print(f"{size} streams: {shown}", flush=True)  # noqa: T201 -- the figures


async def measured(envoy: Envoy, picker: Picker, gateway: Gateway, num_streams: int, num_tokens: int) -> Cost:
    """Run streams, and return what their tokens cost."""
    num_pieces = await envoy.stat(RELAYED)
    before = [_cpu_s(process.pid) for process in (picker.process, gateway.process)]
    asked = {"prompt": "The list is", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    await asyncio.gather(*(_stream(envoy, asked) for _ in range(num_streams)))
    after = [_cpu_s(process.pid) for process in (picker.process, gateway.process)]
    picker_us, gateway_us = [1e6 * (late - early) for early, late in zip(before, after, strict=True)]
    num_pieces = await envoy.stat(RELAYED) - num_pieces
    total = num_streams * num_tokens
    return Cost(picker_us / num_pieces, picker_us / total, gateway_us / total, total / num_pieces)


async def _stream(envoy: Envoy, asked: dict[str, object]) -> None:
    async with envoy.http.stream("POST", "/v1/completions", json=asked) as response:
        assert response.status_code == 200, await response.aread()
        async for _ in response.aiter_raw():
            pass


def _cpu_s(pid: int) -> float:
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def _range(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} - {max(values):.3g})"


if __name__ == "__main__":
    main()
