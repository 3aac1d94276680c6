"""Steps of a made-up machine, for whatever fits or follows costs."""

from __future__ import annotations

import math
import random

from scheduling.cost.cost_model import CostModel, Sample, StepShape

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


def slower(model: CostModel, factor: float) -> CostModel:
    return CostModel(tuple(factor * value for value in model.coefficients), model.knee_tokens)
