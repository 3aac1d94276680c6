"""Measure the engine alone, in one process: decode steps, prompts, a burst, and how busy the GPU is.

The method is that of vLLM's figures in `anchors.py`: a decode step is the time of 136 tokens minus that of 8,
for as many sequences at once, divided by the difference; prompts count until each has its first token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.gpu import anchors
from benchmarks.gpu.setting.bench import Bench, NotMeasured
from benchmarks.gpu.setting.floors import decode_step_s, prefill_s
from benchmarks.gpu.setting.serving import Request, serve
from engine.build import BuiltEngine
from engine.core.report import StepReport
from reporting.section import Goal, Section, markdown
from workloads.shapes import shapes

BUSY_TOKENS = 64


def decode(bench: Bench) -> Section:
    """Measure a decode step at each batch size, against its floor."""
    engine, sizes = bench.engine(), bench.sizes
    short, long = sizes.decode_tokens
    context = sizes.decode_context + (short + long) / 2
    rows, goals, data = [], [], {}
    for batch in sizes.decode_batches:
        step_s = decode_step(bench, engine, batch)
        floor_s = decode_step_s(sizes.model, bench.limits, batch, context)
        bench.found[f"decode {batch}"] = step_s / floor_s
        data[batch] = {"step_s": step_s, "floor_s": floor_s}
        goals.append(
            Goal(f"step / floor at {batch}", (step_s / floor_s,), anchors.decode_goal(batch), at_least=False)
        )
        rows.append((f"{batch}", f"{floor_s * 1e3:.2f}", f"{step_s * 1e3:.2f}", anchors.decode_ms(batch)))
    table = markdown(("sequences", "floor, ms", "here, ms", "vLLM 0.25.1 on an H200, ms"), rows)
    method = (
        f"(time of {long} tokens - time of {short}) / {long - short}, contexts of {sizes.decode_context} to "
        f"{sizes.decode_context + long} tokens; the floor is computed from this run's ceilings."
    )
    return Section("Decode step", method, bench.goals(*goals), (table,), {"decode": data})


def decode_step(bench: Bench, engine: BuiltEngine, batch: int) -> float:
    """Return the seconds of a step for `batch` sequences."""
    sizes = bench.sizes
    short, long = sizes.decode_tokens
    serve(engine, [Request(sizes.decode_context, short)] * batch, bench.seed)  # warm-up
    took = [
        serve(engine, [Request(sizes.decode_context, tokens)] * batch, bench.seed + tokens).seconds
        for tokens in (short, long)
    ]
    return (took[1] - took[0]) / (long - short)


def prefill(bench: Bench) -> Section:
    """Measure prompt tokens per second, with all prompts given at once."""
    engine, sizes = bench.engine(), bench.sizes
    rows, goals, data = [], [], {}
    for count, tokens in sizes.prefills:
        serve(engine, [Request(tokens, 1)] * 2, bench.seed)
        took = serve(engine, [Request(tokens, 1)] * count, bench.seed + 1).seconds
        rate = count * tokens / took
        floor = tokens / prefill_s(sizes.model, bench.limits, tokens)
        name = f"{count} × {tokens}"
        bench.found[f"prefill {name}"] = rate
        data[name] = {"tokens_per_s": rate, "at_the_ceiling": floor}
        goals += anchors.goals(f"prefill {name}", rate)
        rows.append(
            (name, f"{floor:.0f}", f"{rate:.0f}", f"{rate / floor:.0%}", anchors.text(f"prefill {name}"))
        )
    header = ("prompts × tokens", "at the matrix rate, tok/s", "here", "share", "vLLM 0.25.1 on an H200")
    return Section(
        "Prefill", "From the start to the last first token.", bench.goals(*goals),
        (markdown(header, rows),), {"prefill": data},
    )  # fmt: skip


def burst(bench: Bench) -> Section:
    """Measure all requests of the burst workload at once."""
    sizes = bench.sizes
    asked = shapes("burst", sizes.burst_requests, bench.seed, sizes.burst_scale)
    served = serve(
        bench.engine(), [Request(shape.prompt_tokens, shape.output_tokens) for shape in asked], bench.seed
    )
    rate = served.num_tokens / served.seconds
    bench.found["burst"] = rate
    rows = [(f"{len(asked)}", f"{served.seconds:.1f}", f"{rate:.0f}", anchors.text("burst"))]
    header = ("requests", "seconds", "output tok/s", "vLLM 0.25.1 on an H200")
    goals = bench.goals(*anchors.goals("burst", rate))
    data = {"burst": {"seconds": served.seconds, "output_tokens_per_s": rate}}
    return Section(
        "Burst, offline", "512 tokens in, 128 out on average.", goals, (markdown(header, rows),), data
    )


def busy(bench: Bench) -> Section:
    """Measure the share of decode steps in which the GPU works: the profiler's time over the clock's."""
    if bench.device.type != "cuda":
        raise NotMeasured("it needs a GPU's own clock")
    engine, sizes = bench.engine(), bench.sizes
    rows, goals, data = [], [], {}
    for batch in sizes.decode_batches:
        share = _busy_share(bench, engine, batch)
        data[batch] = share
        goals.append(Goal(f"busy at {batch}", (share,), anchors.BUSY_GOAL, spec=".1%"))
        rows.append((f"{batch}", f"{share:.1%}"))
    bench.found["busy"] = min(data.values())
    method = f"{BUSY_TOKENS} steps amid more; kernels and copies that overlap count once."
    table = markdown(("sequences", "busy"), rows)
    return Section("Waiting for Python", method, bench.goals(*goals), (table,), {"busy": data})


def _busy_share(bench: Bench, engine: BuiltEngine, batch: int) -> float:
    profile: Any = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    num_decodes = 0

    def watch(report: StepReport) -> None:
        nonlocal num_decodes
        if report.shape is None or not report.shape.num_tokens == report.shape.num_decodes == batch:
            return
        num_decodes += 1
        if num_decodes == BUSY_TOKENS:
            profile.start()
        elif num_decodes == 2 * BUSY_TOKENS:
            torch.cuda.synchronize()
            profile.stop()

    requests = [Request(bench.sizes.decode_context, 3 * BUSY_TOKENS)] * batch
    serve(engine, requests, bench.seed + 2, watch)
    on_device = [event for event in profile.events() if event.device_type.name == "CUDA"]
    spans = [(float(event.time_range.start), float(event.time_range.end)) for event in on_device]
    return covered(spans) / (max(end for _, end in spans) - min(begin for begin, _ in spans))


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of (begin, end)."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
