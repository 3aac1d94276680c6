"""Measure the limits of a device: bytes read and copied, products of matrices, bytes to the host."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.floors import Ceilings
from benchmarks.gpu.timing import median_s
from sim.reporting.section import Section, markdown

MIB = 1024 * 1024
NUM_PRODUCTS = 4


def measure(bench: Bench) -> Section:
    """Set `bench.ceilings`, which the floors of the other sections are computed from."""
    device, num_bytes = bench.device, bench.sizes.ceiling_mib * MIB
    source = torch.randn(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    host = torch.empty(num_bytes // 16, dtype=torch.float32, pin_memory=device.type == "cuda")
    part = source[: len(host)]
    # A reduction reads everything and writes almost nothing; the fastest one counts.
    reductions = (source.sum, source.amax, lambda: torch.linalg.vector_norm(source, 1))
    bench.ceilings = ceilings = Ceilings(
        read=num_bytes / min(median_s([reduce], device) for reduce in reductions),
        copy=2 * num_bytes / median_s([lambda: target.copy_(source)], device),
        matrix=_matrix_rate(bench),
        to_host=host.nbytes / median_s([lambda: host.copy_(part, non_blocking=True)], device),
        from_host=host.nbytes / median_s([lambda: part.copy_(host, non_blocking=True)], device),
    )
    rows = [
        ("read", f"{ceilings.read / 1e12:.2f} TB/s", "4.48"),
        ("copy, bytes in and out", f"{ceilings.copy / 1e12:.2f} TB/s", "4.28"),
        (f"product of matrices, {bench.dtype}", f"{ceilings.matrix / 1e12:.0f} TFLOP/s", "780 to 794"),
        ("to the host, pinned", f"{ceilings.to_host / 1e9:.1f} GB/s", "55"),
        ("from the host, pinned", f"{ceilings.from_host / 1e9:.1f} GB/s", "55"),
    ]
    table = markdown(("ceiling", "here", "an H200 on 2026-11-21"), rows)
    method = (
        f"Buffers of {bench.sizes.ceiling_mib} MiB of random numbers, "
        f"products of {bench.sizes.ceiling_side}-square matrices."
    )
    return Section("Ceilings", method, (), (table,), {"ceilings": asdict(ceilings)})


def _matrix_rate(bench: Bench) -> float:
    side = bench.sizes.ceiling_side
    shape = (NUM_PRODUCTS, side, side)
    left_factors, right_factors = (torch.randn(shape, device=bench.device).to(bench.dtype) for _ in range(2))
    out = torch.empty(side, side, device=bench.device, dtype=bench.dtype)
    calls = [partial(torch.mm, *pair, out=out) for pair in zip(left_factors, right_factors, strict=True)]
    return 2 * side**3 / median_s(calls, bench.device)
