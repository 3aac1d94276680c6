"""Measure the cost and gain of variants: 8-bit weights, 8-bit KV, and deterministic mode.

Each is a separate engine with the same weights, drawn from the same seed. A decode step is measured as in
`offline.py`, and compared with that of the plain engine in this run.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu import anchors
from benchmarks.gpu.offline import decode_step
from benchmarks.gpu.setting.bench import Bench
from engine.build import BuiltEngine
from engine.model.quantisation import Quantisation
from reporting.section import Goal, Section, markdown

DETERMINISTIC = "deterministic"
QUANTISATIONS = (Quantisation.INT8, Quantisation.KV8, Quantisation.KVFP8, Quantisation.INT8_KV8)


def measure(bench: Bench) -> Section:
    """Measure decode steps at a small and a large batch, and the tokens of KV that fit."""
    batches = bench.sizes.variant_batches
    plain = _figures(bench, bench.engine(), batches)
    bench.release()
    ways: dict[str, dict[str, Any]] = {
        **{kind.value: {"quantisation": kind} for kind in QUANTISATIONS},
        DETERMINISTIC: {"deterministic": True},
    }
    rows, data = [_row("plain", plain, plain)], {"plain": plain}
    for name, way in ways.items():
        data[name] = _figures(bench, bench.build(**way), batches)
        bench.release()
        rows.append(_row(name, data[name], plain))
    slower = data[DETERMINISTIC]["steps_s"][-1] / plain["steps_s"][-1]
    bench.found[DETERMINISTIC] = slower
    goal = Goal("deterministic step / plain", (slower,), anchors.DETERMINISTIC_GOAL, at_least=False)
    header = (
        "engine",
        *(f"step at {batch}, ms" for batch in batches),
        "of plain",
        "tokens of KV",
        "of plain",
    )
    method = "As above; KV uses the memory that the weights leave free."
    return Section("Variants", method, bench.goals(goal), (markdown(header, rows),), {"variants": data})


def _figures(bench: Bench, engine: BuiltEngine, batches: tuple[int, int]) -> dict[str, Any]:
    pool = engine.runner.pool
    steps = [decode_step(bench, engine, batch) for batch in batches]
    return {"steps_s": steps, "kv_tokens": pool.num_blocks * pool.layout.block_size}


def _row(name: str, found: dict[str, Any], plain: dict[str, Any]) -> tuple[str, ...]:
    steps, tokens = found["steps_s"], found["kv_tokens"]
    return (
        name,
        *(f"{step * 1e3:.2f}" for step in steps),
        f"{steps[-1] / plain['steps_s'][-1]:.2f}",
        f"{tokens}",
        f"{tokens / plain['kv_tokens']:.2f}",
    )
