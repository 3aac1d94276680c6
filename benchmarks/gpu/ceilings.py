"""Measure the limits of a device: bytes read and copied, products of matrices, bytes to the host."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.gpu.setting.bench import Bench
from benchmarks.gpu.setting.floors import Ceilings
from benchmarks.gpu.setting.timing import median_s
from reporting.section import Section, markdown

MIB = 1024 * 1024
NUM_PRODUCTS = 4


def measure(bench: Bench) -> Section:
    """Set `bench.ceilings`, which the floors of the other sections are computed from."""
    device, num_bytes = bench.device, bench.sizes.ceiling_mib * MIB
    source = torch.randn(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    # A reduction reads everything and writes almost nothing; the fastest one counts.
    read_s = min(
        median_s([source.sum], device),
        median_s([source.amax], device),
        median_s([lambda: torch.linalg.vector_norm(source, 1)], device),
    )
    copy_s = median_s([lambda: target.copy_(source)], device)
    host = torch.empty(num_bytes // 16, dtype=torch.float32, pin_memory=device.type == "cuda")
    part = source[: len(host)]
    to_host_s = median_s([lambda: host.copy_(part, non_blocking=True)], device)
    from_host_s = median_s([lambda: part.copy_(host, non_blocking=True)], device)
    bench.ceilings = Ceilings(
        read=num_bytes / read_s,
        copy=2 * num_bytes / copy_s,
        matrix=_matrix_rate(bench),
        to_host=len(host) * 4 / to_host_s,
        from_host=len(host) * 4 / from_host_s,
    )
    found = bench.ceilings
    rows = [
        ("read", f"{found.read / 1e12:.2f} TB/s", "4.48"),
        ("copy, bytes in and out", f"{found.copy / 1e12:.2f} TB/s", "4.28"),
        (f"product of matrices, {bench.dtype}", f"{found.matrix / 1e12:.0f} TFLOP/s", "780 to 794"),
        ("to the host, pinned", f"{found.to_host / 1e9:.1f} GB/s", "55"),
        ("from the host, pinned", f"{found.from_host / 1e9:.1f} GB/s", "55"),
    ]
    table = markdown(("ceiling", "here", "an H200 on 2026-11-21"), rows)
    method = (
        f"Buffers of {bench.sizes.ceiling_mib} MiB of random numbers, "
        f"products of {bench.sizes.ceiling_side}-square matrices."
    )
    data = {name: getattr(found, name) for name in ("read", "copy", "matrix", "to_host", "from_host")}
    return Section("Ceilings", method, (), (table,), {"ceilings": data})


def _matrix_rate(bench: Bench) -> float:
    side = bench.sizes.ceiling_side
    pairs = [
        [torch.randn(side, side, device=bench.device).to(bench.dtype) for _ in range(2)]
        for _ in range(NUM_PRODUCTS)
    ]
    out = torch.empty(side, side, device=bench.device, dtype=bench.dtype)
    calls = [partial(torch.mm, left, other, out=out) for left, other in pairs]
    seconds = median_s(calls, bench.device)
    return 2 * side**3 / seconds
