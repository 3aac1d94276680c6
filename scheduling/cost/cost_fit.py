"""Fit a `CostModel` to measured steps, at start-up and whenever `cost_estimator` asks for it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from scheduling.cost_model import NUM_COEFFICIENTS, CostModel, Sample, is_usable

Array = NDArray[np.float64]

MIN_SAMPLES = 2 * NUM_COEFFICIENTS
# A step this many times longer or shorter than the fit is an outlier.
TRIM = 4.0
PASSES = 3
AT_FLOOR = 1.5
"""A step with a chunk that lasts at most this many times as long as the floor is taken to be at the floor,
until a first fit says what its contents cost."""
KNEES = (0, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def fit(
    samples: Iterable[Sample], previous: CostModel | None = None, *, floor_s: float = 0.0
) -> CostModel | None:
    """Return the model of least squared relative error over a grid of knees; `previous` with too few samples.

    Samples that are not finite and above 0 are dropped at once, outliers in a second pass. Errors are
    relative, so that a step of 1 ms counts as much as one of 100 ms. A fit takes some 10 ms.

    `floor_s` is the least time of a step with a chunk. Steps that last no longer because of what they
    contain say nothing of what it costs, and are left out.
    """
    every = [(shape, measured) for shape, measured in samples if is_usable(shape, measured)]
    if len(every) < MIN_SAMPLES:
        return previous
    sizes = np.array([shape.sizes for shape, _ in every], dtype=np.float64)
    seconds = np.array([measured for _, measured in every])
    has_chunk = np.array([shape.has_chunk for shape, _ in every])
    # A glitch near zero would outweigh everything else; the first fit then shows what is near zero.
    scale = np.maximum(seconds, np.quantile(seconds, 0.1) / 2)
    kept = ~(has_chunk & (seconds <= AT_FLOOR * floor_s))
    model: CostModel | None = None
    for _ in range(PASSES):
        if kept.sum() < MIN_SAMPLES:
            break
        model = _fit_knees(sizes[kept], seconds[kept], scale[kept])
        predicted = _columns(sizes, model.knee_tokens) @ np.array(model.coefficients)
        kept = (seconds < predicted * TRIM) & (seconds > predicted / TRIM)
        kept &= ~(has_chunk & (predicted <= floor_s))
        scale = np.maximum(seconds, predicted / TRIM)
    if model is None or not any(model.coefficients):
        return previous
    return replace(model, chunk_floor_s=floor_s).judged_by(every)


def least_chunk_s(samples: Iterable[Sample]) -> float:
    """Return the median time of the steps with a chunk that have the fewest tokens; 0 without any."""
    chunks = [(shape.num_tokens, seconds) for shape, seconds in samples if shape.has_chunk]
    if not chunks:
        return 0.0
    fewest = min(num_tokens for num_tokens, _ in chunks)
    return median(seconds for num_tokens, seconds in chunks if num_tokens < 2 * fewest)


def _fit_knees(sizes: Array, seconds: Array, scale: Array) -> CostModel:
    best_error, best = math.inf, CostModel((0.0,) * NUM_COEFFICIENTS, 0.0)
    for knee in KNEES:
        if knee and knee >= sizes[:, 0].max():
            break
        columns = _columns(sizes, knee) / scale[:, None]
        coefficients = nnls(columns, seconds / scale)
        error = float(np.square(columns @ coefficients - seconds / scale).sum())
        # Knees that the samples cannot distinguish differ by rounding: the lowest of them promises least.
        if error < best_error * (1 - 1e-9):
            best_error, best = error, CostModel(tuple(coefficients.tolist()), float(knee))
    return best


def _columns(sizes: Array, knee: float) -> Array:
    """Return the factor of each coefficient: [samples, NUM_COEFFICIENTS]."""
    num_tokens, num_seqs, *rest = sizes.T
    return np.stack([np.ones(len(sizes)), num_seqs, np.maximum(0.0, num_tokens - knee), *rest], axis=1)


def nnls(columns: Array, target: Array) -> Array:
    """Return the x ≥ 0 that minimises |columns @ x - target|.

    The active-set method of Lawson and Hanson, "Solving Least Squares Problems" (1974), chapter 23: columns
    enter the free set by the steepest gradient and leave it when the unconstrained solution makes them
    negative.
    """
    norms = np.linalg.norm(columns, axis=0)
    unit = columns / np.where(norms > 0, norms, 1.0)
    num_columns = unit.shape[1]
    x = np.zeros(num_columns)
    free = np.zeros(num_columns, dtype=bool)
    tolerance = 1e-12 * max(1.0, float(np.linalg.norm(target)))
    for _ in range(3 * num_columns):
        gradient = unit.T @ (target - unit @ x)
        gradient[free] = -np.inf
        entering = int(gradient.argmax())
        if gradient[entering] <= tolerance:
            break
        free[entering] = True
        x = _restrict(unit, target, x, free)
    return x / np.where(norms > 0, norms, 1.0)


def _restrict(unit: Array, target: Array, x: Array, free: NDArray[np.bool_]) -> Array:
    """Solve least squares over the free columns; columns that would turn negative on the way leave `free`."""
    while free.any():
        wanted = np.zeros_like(x)
        wanted[free] = np.linalg.lstsq(unit[:, free], target, rcond=None)[0]
        blocking = free & (wanted <= 0)
        if not blocking.any():
            return wanted
        # x is feasible: move towards the solution until the first free column reaches 0.
        step = float((x[blocking] / np.maximum(x[blocking] - wanted[blocking], 1e-300)).min())
        x = np.maximum(x + step * (wanted - x), 0.0)
        free &= ~(blocking & (x <= 1e-15))
    return np.zeros_like(x)
