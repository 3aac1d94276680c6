"""Measure the engine alone, in one process: decode steps, prompts, a burst, and how busy the GPU is; and its
variants: 8-bit weights, 8-bit KV, and deterministic mode.

The method is that of vLLM's figures in `anchors.py`: a decode step is the time of 136 tokens minus that of 8,
for as many sequences at once, divided by the difference; prompts count until each has its first token.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

import torch

from benchmarks.decodes import decode as decode_command
from benchmarks.decodes import fixed_length, run_all
from benchmarks.gpu.anchors import VLLM, VLLM_DECODE_MS, VLLM_OVER_FLOOR, in_words, theirs
from benchmarks.gpu.bench import Bench, Columns, NotMeasured
from benchmarks.gpu.floors import decode_step_s, prefill_s
from engine.building.build import BuiltEngine
from engine.core.report import StepReport
from engine.model.quantised.quantisation import Quantisation
from sim.reporting.section import Section
from sim.workloads.shapes import RequestShape, shapes

BUSY_TOKENS = 64
LISTED_KERNELS = 6
QUANTISATIONS = (Quantisation.INT8, Quantisation.KV8, Quantisation.KVFP8, Quantisation.INT8_KV8)


def decode(bench: Bench) -> Section:
    """Measure a decode step at each batch size, against its floor."""
    engine, sizes = bench.engine(), bench.sizes
    short, long = sizes.decode_tokens
    context = sizes.decode_context + (short + long) / 2
    results = {
        batch: {
            "step_s": decode_step(bench, engine, batch),
            "floor_s": decode_step_s(sizes.model, bench.limits, batch, context),
        }
        for batch in sizes.decode_batches
    }
    columns: Columns = {
        "sequences": itemgetter("name"),
        "floor, ms": lambda step: f"{step['floor_s'] * 1e3:.2f}",
        "here, ms": lambda step: f"{step['step_s'] * 1e3:.2f}",
        f"{VLLM}, ms": lambda step: VLLM_DECODE_MS.get(step["name"], "–"),
        "over the floor": lambda step: f"{step['step_s'] / step['floor_s']:.2f} ×",
        f"{VLLM}'s": lambda step: VLLM_OVER_FLOOR.get(step["name"], "–"),
    }
    method = (
        f"(time of {long} tokens - time of {short}) / {long - short}, contexts of {sizes.decode_context} to "
        f"{sizes.decode_context + long} tokens; the floor is computed from this run's ceilings."
    )
    figures = {
        f"decode step / floor at {batch}": step["step_s"] / step["floor_s"] for batch, step in results.items()
    }
    return bench.section("Decode step", method, columns, {"decode": results}, figures)


def prefill(bench: Bench) -> Section:
    """Measure prompt tokens per second, with all prompts given at once."""
    engine, sizes = bench.engine(), bench.sizes
    results = {}
    for count, tokens in sizes.prefills:
        serve(engine, [RequestShape(tokens, 1)] * 2, bench.seed)
        took_s, _ = serve(engine, [RequestShape(tokens, 1)] * count, bench.seed + 1)
        at_the_ceiling = tokens / prefill_s(sizes.model, bench.limits, tokens)
        results[f"{count} × {tokens}"] = {
            "tokens_per_s": count * tokens / took_s,
            "at_the_ceiling": at_the_ceiling,
        }
    figures = {f"prefill {name}, tok/s": rates["tokens_per_s"] for name, rates in results.items()}
    columns: Columns = {
        "prompts × tokens": itemgetter("name"),
        "at the matrix rate, tok/s": lambda rates: f"{rates['at_the_ceiling']:.0f}",
        "here": lambda rates: f"{rates['tokens_per_s']:.0f}",
        "share": lambda rates: f"{rates['tokens_per_s'] / rates['at_the_ceiling']:.0%}",
        VLLM: lambda rates: in_words(theirs(f"prefill {rates['name']}, tok/s")),
    }
    method = "From the start to the last first token."
    return bench.section("Prefill", method, columns, {"prefill": results}, figures)


def burst(bench: Bench) -> Section:
    """Measure all requests of the burst workload at once."""
    sizes = bench.sizes
    requests = shapes("burst", sizes.burst_requests, bench.seed, sizes.burst_scale)
    seconds, num_tokens = serve(bench.engine(), requests, bench.seed)
    figure = "burst, output tok/s"
    results = {len(requests): {"seconds": seconds, "output_tokens_per_s": num_tokens / seconds}}
    columns: Columns = {
        "requests": itemgetter("name"),
        "seconds": lambda served: f"{served['seconds']:.1f}",
        "output tok/s": lambda served: f"{served['output_tokens_per_s']:.0f}",
        VLLM: lambda _: in_words(theirs(figure)),
    }
    method = "512 tokens in, 128 out on average."
    figures = {figure: num_tokens / seconds}
    return bench.section("Burst, offline", method, columns, {"burst": results}, figures)


def busy(bench: Bench) -> Section:
    """Measure the share of decode steps in which the GPU works, and the kernels of a step: the profiler's
    times over the clock's.
    """
    if bench.device.type != "cuda":
        raise NotMeasured("it needs a GPU's own clock")
    engine = bench.engine()
    results = {batch: _profiled(bench, engine, batch) for batch in bench.sizes.decode_batches}
    columns: Columns = {
        "sequences": itemgetter("name"),
        "step, ms": lambda batch: f"{batch['step_s'] * 1e3:.2f}",
        "busy": lambda batch: f"{batch['share']:.1%}",
        "longest kernels, µs of a step": lambda batch: longest_kernels(batch["kernels"]),
    }
    method = f"{BUSY_TOKENS} steps amid more; kernels and copies that overlap count once."
    figures = {"busy, least share": min(batch["share"] for batch in results.values())}
    return bench.section("Waiting for Python", method, columns, {"busy": results}, figures)


def variants(bench: Bench) -> Section:
    """Measure decode steps at a small and a large batch, and the tokens of KV that fit.

    Each variant is a separate engine with the same weights, drawn from the same seed.
    """
    batches = bench.sizes.variant_batches
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        **{kind.value: {"quantisation": kind} for kind in QUANTISATIONS},
        "deterministic": {"deterministic": True},
    }
    results = {name: _variant(bench, way) for name, way in ways.items()}
    plain = results["plain"]
    columns: Columns = {
        "engine": itemgetter("name"),
        f"step at {batches[0]}, ms": lambda way: f"{way['steps_s'][0] * 1e3:.2f}",
        f"step at {batches[1]}, ms": lambda way: f"{way['steps_s'][1] * 1e3:.2f}",
        "of plain": lambda way: f"{way['steps_s'][1] / plain['steps_s'][1]:.2f}",
        "tokens of KV": itemgetter("kv_tokens"),
        "of plain's": lambda way: f"{way['kv_tokens'] / plain['kv_tokens']:.2f}",
    }
    method = "Decode steps as above; KV uses the memory that the weights leave free."
    figures = {"deterministic step / plain": results["deterministic"]["steps_s"][1] / plain["steps_s"][1]}
    return bench.section("Variants", method, columns, {"variants": results}, figures)


def _variant(bench: Bench, way: dict[str, Any]) -> dict[str, Any]:
    bench.release()
    engine = bench.build(**way)
    pool = engine.runner.pool
    steps_s = [decode_step(bench, engine, batch) for batch in bench.sizes.variant_batches]
    return {"steps_s": steps_s, "kv_tokens": pool.num_blocks * pool.layout.block_size}


def decode_step(bench: Bench, engine: BuiltEngine, batch: int) -> float:
    """Return the seconds of a step for `batch` sequences."""
    context, (short, long) = bench.sizes.decode_context, bench.sizes.decode_tokens

    def took_s(tokens: int, seed: int) -> float:
        return serve(engine, [RequestShape(context, tokens)] * batch, seed)[0]

    took_s(short, bench.seed)  # warm-up
    short_s, long_s = (took_s(tokens, bench.seed + tokens) for tokens in (short, long))
    return (long_s - short_s) / (long - short)


def serve(
    engine: BuiltEngine,
    requests: Sequence[RequestShape],
    seed: int,
    watch: Callable[[StepReport], None] = lambda _: None,
) -> tuple[float, int]:
    """Serve requests with random prompts, all given at once, greedily, ignoring end-of-sequence.

    Return the seconds until the last token, and the number of tokens. `watch` is called with each report.
    """
    rng = random.Random(seed)
    vocab = range(engine.runner.model.facts.vocab_size)
    commands = [
        # Equal seeds give equal prompts, which must be computed all the same.
        decode_command(
            tuple(rng.choices(vocab, k=request.prompt_tokens)),
            fixed_length(request.output_tokens),
            is_salted=True,
        )
        for request in requests
    ]
    last_s, num_tokens = 0.0, 0
    start_s = time.perf_counter()

    def count(report: StepReport) -> None:
        nonlocal last_s, num_tokens
        if report.tokens.handles:
            last_s, num_tokens = time.perf_counter() - start_s, num_tokens + len(report.tokens.handles)
        watch(report)

    run_all(engine.loop, iter([commands]), count)
    return last_s, num_tokens


def _profiled(bench: Bench, engine: BuiltEngine, batch: int) -> dict[str, Any]:
    """Return the duration of a step, the share in which the GPU works, and its seconds by kernel."""
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

    requests = [RequestShape(bench.sizes.decode_context, 3 * BUSY_TOKENS)] * batch
    serve(engine, requests, bench.seed + 2, watch)
    on_device = [event for event in profile.events() if event.device_type.name == "CUDA"]
    spans = [(float(event.time_range.start), float(event.time_range.end)) for event in on_device]
    lasted = max(end for _, end in spans) - min(begin for begin, _ in spans)
    kernels: defaultdict[str, float] = defaultdict(float)
    for event, (begin, end) in zip(on_device, spans, strict=True):
        kernels[event.name] += (end - begin) / 1e6 / BUSY_TOKENS
    longest_first = dict(sorted(kernels.items(), key=itemgetter(1), reverse=True))
    step_s = lasted / 1e6 / BUSY_TOKENS
    return {"step_s": step_s, "share": covered(spans) / lasted, "kernels": longest_first}


def longest_kernels(seconds: Mapping[str, float]) -> str:
    """Return the kernels that take the longest in a step, by their names up to their arguments."""
    descriptions = (
        f"{name.split('<')[0].split('(')[0].strip()[:40]} {each * 1e6:.0f}" for name, each in seconds.items()
    )
    return ", ".join(islice(descriptions, LISTED_KERNELS))


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of (begin, end)."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
