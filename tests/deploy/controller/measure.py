"""Measure the controller by the number of workers: `python -m tests.deploy.controller.measure`.

Each size is a pool of its own with a fresh controller: adopted, at rest, rolled out with a surge of a tenth,
and scaled to half. The API server notes the calls; nodes, workers and routers are scripted.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.deploy.controller.control_plane import ControlPlane, control_plane
from tests.deploy.controller.fake_nodes import deployment, pool
from tests.deploy.controller.scene import KIND, Scene, scene

AT_REST_S = 60.0
LONGEST_S = 1800.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", default="50,100,250,500", help="sizes of the pool (50,100,250,500)")
    sizes = [int(size) for size in parser.parse_args().workers.split(",")]
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as plane:
        plane.kubectl("apply", "-f", str(KIND))
        plane.kubectl("wait", "--for=condition=Established", "crd/workerpools.baton.dev", "--timeout=60s")
        for size in sizes:
            asyncio.run(measure(plane, size))


async def measure(plane: ControlPlane, size: int) -> None:
    """Print one line for each thing that happens to a pool of this size."""
    async with scene(plane) as here:
        surge = max(1, size // 10)
        await here.apply(deployment("decode", size, surge=surge), pool("decode", size))
        await here.start()
        await _timed(here, size, "adopted", here.until_settled("decode", size, LONGEST_S))
        await _timed(here, size, "at rest for 60 s", asyncio.sleep(AT_REST_S))
        await here.apply(deployment("decode", size, "v2", surge=surge))
        await here.until_reason("decode", "RollingOut")
        await _timed(here, size, "rolled out", here.until_settled("decode", size, LONGEST_S))
        await here.kubectl("scale", "workerpool/decode", f"--replicas={size // 2}")
        await _timed(here, size, "scaled to half", here.until_settled("decode", size // 2, LONGEST_S))


async def _timed(here: Scene, size: int, what: str, done: Awaitable[None]) -> None:
    assert here.controller is not None
    process = psutil.Process(here.controller.pid)
    before, cpu_s, began_s = here.plane.calls(), sum(process.cpu_times()[:2]), time.monotonic()
    await done
    calls: Counter[str] = here.plane.calls() - before
    took_s, cpu_s = time.monotonic() - began_s, sum(process.cpu_times()[:2]) - cpu_s
    listed = ", ".join(f"{count} {call}" for call, count in sorted(calls.items()))
    memory = here.memory_bytes() / 2**20
    print(  # noqa: T201 -- the figures
        f"{size} workers, {what}: {took_s:.0f} s, {cpu_s:.1f} s CPU, {memory:.0f} MiB, "
        f"{calls.total()} calls: {listed}",
        flush=True,
    )


if __name__ == "__main__":
    main()
