"""Steps of a made-up machine, for whatever fits or follows costs."""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

from scheduling.cost_model import CostModel, Sample, StepShape

DEMO = CostModel((9e-4, 5e-5, 6e-5, 2e-7, 1e-8, 3e-7), knee_tokens=16)


def grid() -> list[StepShape]:
    decodes = [
        StepShape.of(batch, batch * context, [])
        for batch in (1, 2, 8, 16, 32, 64)
        for context in (16, 256, 1024)
    ]
    chunks = [
        StepShape.of(batch, batch * 200, [(context, tokens)])
        for batch in (0, 8)
        for context in (0, 512, 2048)
        for tokens in (16, 64, 256)
    ]
    return decodes + chunks


def measure(model: CostModel, noise: float = 0.0, seed: int = 1) -> list[Sample]:
    """Every step of the grid once, by `model`, with lognormal noise."""
    rng = random.Random(seed)
    return [(shape, model.predict(shape) * math.exp(rng.gauss(0, noise))) for shape in grid()]


H200_SWEPT = CostModel(
    (4.821e-3, 8.4e-6, 2.648e-5, 3.02e-8, 0.0, 6.52e-6), 384.0, 0.95, 0.99, 1.13, chunk_floor_s=0.0165
)
"""The costs that the start-up sweep found on the worker whose steps `h200_steps` returns."""


def h200_steps() -> list[Sample]:
    """Return the steps of a live worker on an H200, with the shape of Llama-3.1-8B, in their order.

    It served `chat` at 12 requests a second for 8 s, as recorded by its router, and then what was left. The
    host shared its cores with the router and the clients, and launched a step with a chunk in 17 to 32 ms.
    """
    with (Path(__file__).parent / "h200_steps.csv").open(encoding="utf-8", newline="") as file:
        return [
            (
                StepShape(
                    int(row["num_tokens"]),
                    int(row["num_seqs"]),
                    int(row["decode_context"]),
                    float(row["chunk_attention"]),
                    int(row["chunk_context"]),
                    int(row["num_decodes"]),
                ),
                float(row["seconds"]),
            )
            for row in csv.DictReader(file)
        ]


def slower(model: CostModel, factor: float) -> CostModel:
    return CostModel(tuple(factor * value for value in model.coefficients), model.knee_tokens)
