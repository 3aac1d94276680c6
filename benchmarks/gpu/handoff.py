"""Measure handoffs of KV between two processes on one device: the bandwidth, and the share that is hidden.

The hidden part of a handoff runs while its prompt is still computed: a chunk's blocks travel during the next
chunk. Figures are the workers' own metrics, for prompts one after the other.
"""

from __future__ import annotations

import asyncio

from baton.fleet import Fleet, FleetSpec
from benchmarks.fleets.arms import reached
from benchmarks.fleets.load import closed_loop, jobs
from benchmarks.fleets.observe import scrape, total
from benchmarks.gpu import anchors
from benchmarks.gpu.fleet import START_TIMEOUT_S, refuse_failures, worker_flags
from benchmarks.gpu.setting.bench import Bench
from reporting.section import Goal, Section, markdown
from workloads.shapes import RequestShape

PROMPTS = 8
POOL_PROMPTS = 4
"""Prompts that each worker's pool has room for: both share the device's memory."""
MIB = 1024 * 1024


def measure(bench: Bench) -> Section:
    """Measure bandwidth and hidden share."""
    bench.release()
    rows, data = [], {}
    for transport in ("cuda_ipc", "shm") if bench.device.type == "cuda" else ("shm",):
        seconds, exposed, num_bytes = asyncio.run(_serve(bench, transport))
        hidden = 1 - exposed / seconds
        bench.found.setdefault("hidden", hidden)
        data[transport] = {"seconds": seconds, "exposed_s": exposed, "bytes": num_bytes}
        rows.append(
            (
                f"{PROMPTS} × {bench.sizes.handoff_tokens}",
                transport,
                f"{num_bytes / 1e9:.2f}",
                f"{num_bytes / seconds / 1e9:.2f}",
                f"{exposed / PROMPTS * 1e3:.1f}",
                f"{hidden:.1%}",
            )
        )
    header = ("prompts × tokens", "by", "GB", "GB/s, first fetch to last", "left to wait for, ms", "hidden")
    found = bench.found["hidden"]
    goal = Goal("hidden share", (found,), anchors.HIDDEN_GOAL, spec=".1%")
    method = (
        "A router, a prefill and a decode worker; greedy, two tokens each. "
        "The goal is for the first transport."
    )
    return Section("Handoff", method, bench.goals(goal), (markdown(header, rows),), {"handoff": data})


async def _serve(bench: Bench, transport: str) -> tuple[float, float, float]:
    """Return the seconds from first fetches to last, the exposed ones among them, and the bytes."""
    tokens = bench.sizes.handoff_tokens
    pool_mib = -(-POOL_PROMPTS * tokens * bench.sizes.model.kv_bytes_per_token // MIB)
    flags = [*worker_flags(bench), "--kv-memory-mb", str(pool_mib), "--transport", transport]
    spec = FleetSpec(
        model=bench.model,
        placement="disaggregated",
        extra_args={"prefill": flags, "decode": flags},
        run_dir=bench.folder / f"handoff-{transport}",
        standstill_s=START_TIMEOUT_S,
    )
    async with Fleet(spec) as fleet, reached(fleet.router_addresses, "handoff") as target:
        work = jobs(target, [RequestShape(tokens, 2)] * PROMPTS, bench.seed)
        refuse_failures(await closed_loop(target.client, work, 1))
        samples = await scrape(fleet.process("decode-0").metrics_address)
        names = ("kv_handoff_seconds_sum", "kv_handoff_exposed_seconds_sum", "kv_bytes_total")
        seconds, exposed, num_bytes = (total(samples, f"baton_{name}") for name in names)
        return seconds, exposed, num_bytes
