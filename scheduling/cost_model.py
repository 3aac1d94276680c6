"""The cost of a step in seconds, as a function of what it computes.

    t = a0 + c1·B + c3·max(0, n - k) + c4·Σctx_decode + c5·Σ chunk·(ctx + chunk/2) + c6·Σ ctx_chunk

n is the number of tokens and B the number of sequences. k is the knee: up to it, a step takes the time to
read the weights, and more tokens are free. The decodes' contexts are read once, a chunk's context by each of
its queries (c5, half of its own triangle) and once more where the paged pool is gathered (c6). Every
coefficient is at least 0, so the cost never falls as a step grows and can be inverted by bisection. Workers
measure it, routers and the simulator use it: `cost_estimator` follows a worker's steps, `cost_fit` has the
fit, which needs numpy.

On a GPU, steps of decodes alone are recorded once and replayed. A step with a chunk is launched kernel by
kernel, which takes the host longer than the device needs for a short chunk. So there is a floor to it:

    t = max(t, floor) for a step with a chunk

The host also varies more than the device. Such steps have a band of their own, `chunk_band`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import field, replace

from scheduling.value import value

NUM_COEFFICIENTS = 6
# The time of a step under a debugger, on a suspended laptop or by a broken clock says nothing about the next.
WILD = 100.0
"""A step is ignored if it took this many times more or less than predicted."""


@value
class StepShape:
    """The sizes of a step that its cost depends on.

    num_tokens       tokens computed, decodes and chunks together
    num_seqs         sequences they belong to
    decode_context   Σ context of the decodes
    chunk_attention  Σ chunk · (context before it + chunk / 2)
    chunk_context    Σ context before each chunk
    num_decodes      decodes among the tokens; costs nothing by itself
    """

    num_tokens: int
    num_seqs: int
    decode_context: int
    chunk_attention: float
    chunk_context: int
    num_decodes: int = 0

    @classmethod
    def of(cls, num_decodes: int, decode_context: int, chunks: Iterable[tuple[int, int]]) -> StepShape:
        """Return the shape of some decodes and some chunks, each given as (context before it, tokens)."""
        num_tokens, num_seqs, attention, context = num_decodes, num_decodes, 0.0, 0
        for before, tokens in chunks:
            num_tokens += tokens
            num_seqs += 1
            attention += tokens * (before + tokens / 2)
            context += before
        return cls(num_tokens, num_seqs, decode_context, attention, context, num_decodes)

    @property
    def has_chunk(self) -> bool:
        """True unless it computes one token of each of its decodes and nothing else."""
        return self.num_tokens > self.num_decodes

    @property
    def sizes(self) -> tuple[float, ...]:
        """All sizes that cost something."""
        return (
            self.num_tokens,
            self.num_seqs,
            self.decode_context,
            self.chunk_attention,
            self.chunk_context,
        )

    def with_chunk(self, context: int, tokens: int) -> StepShape:
        """Return this step with one more chunk in it."""
        return StepShape(
            self.num_tokens + tokens,
            self.num_seqs + 1,
            self.decode_context,
            self.chunk_attention + tokens * (context + tokens / 2),
            self.chunk_context + context,
            self.num_decodes,
        )

    def with_more(self, context: int, tokens: int) -> StepShape:
        """Return this step with more tokens behind those of one of its sequences, which has that context."""
        return StepShape(
            self.num_tokens + tokens,
            self.num_seqs,
            self.decode_context,
            self.chunk_attention + tokens * (context + tokens / 2),
            self.chunk_context,
            self.num_decodes,
        )


Sample = tuple[StepShape, float]
"""A step and the seconds it took."""


@value
class Band:
    """Quantiles of actual / predicted; finite, above 0, in ascending order."""

    q10: float
    q50: float
    q95: float

    def __post_init__(self) -> None:
        quantiles = (self.q10, self.q50, self.q95)
        if not (
            all(math.isfinite(ratio) and ratio > 0 for ratio in quantiles)
            and list(quantiles) == sorted(quantiles)
        ):
            raise ValueError(f"ratios q10, q50, q95 are {quantiles}; accepted: finite, above 0, not falling")

    @classmethod
    def of(cls, ratios: Iterable[float]) -> Band | None:
        """Return the band of some ratios; None without any. Wild ones are left out."""
        ordered = sorted(ratio for ratio in ratios if 1 / WILD <= ratio <= WILD)
        return cls(*(quantile(ordered, q) for q in (0.10, 0.50, 0.95))) if ordered else None


def is_usable(shape: StepShape, seconds: float) -> bool:
    """Return True if this can have been a step: finite, and longer than 0 seconds."""
    return 0 < seconds < math.inf and all(0 <= size < math.inf for size in shape.sizes)


@value
class CostModel:
    """One worker's step costs: (a0, c1, c3, c4, c5, c6), k, and the quantiles of actual / predicted."""

    coefficients: tuple[float, ...]
    knee_tokens: float
    ratio_q10: float = 1.0
    ratio_q50: float = 1.0
    ratio_q95: float = 1.0
    is_trusted: bool = True
    """Close enough to recent steps to size steps by it; otherwise steps keep to a fixed budget."""
    chunk_floor_s: float = 0.0
    """The least time of a step with a chunk, in seconds; 0 where such a step has no costs of its own."""
    chunk_band: Band | None = None
    """The quantiles for steps with a chunk; None where they are those of all steps."""
    of_chunks: Band = field(init=False, repr=False, compare=False)
    """The quantiles for steps with a chunk."""

    def __post_init__(self) -> None:
        if len(self.coefficients) != NUM_COEFFICIENTS:
            raise ValueError(
                f"coefficients has {len(self.coefficients)} values; accepted: {NUM_COEFFICIENTS}"
            )
        if not all(math.isfinite(value) and value >= 0 for value in self.coefficients):
            raise ValueError(f"coefficients is {self.coefficients}; accepted: finite numbers from 0")
        if not (math.isfinite(self.knee_tokens) and self.knee_tokens >= 0):
            raise ValueError(f"knee_tokens is {self.knee_tokens}; accepted: a finite number from 0")
        of_all = Band(self.ratio_q10, self.ratio_q50, self.ratio_q95)
        object.__setattr__(self, "of_chunks", self.chunk_band or of_all)
        if not (math.isfinite(self.chunk_floor_s) and self.chunk_floor_s >= 0):
            raise ValueError(f"chunk_floor_s is {self.chunk_floor_s}; accepted: a finite number from 0")

    def predict(self, shape: StepShape) -> float:
        """Return the seconds that such a step takes, before the ratios."""
        seconds = self.above_floor(shape)
        return self.chunk_floor_s if seconds < self.chunk_floor_s and shape.has_chunk else seconds

    def above_floor(self, shape: StepShape) -> float:
        """Return the seconds that such a step takes if nothing but its contents costs time."""
        a0, c1, c3, c4, c5, c6 = self.coefficients
        return (
            a0
            + c1 * shape.num_seqs
            + c3 * max(0.0, shape.num_tokens - self.knee_tokens)
            + c4 * shape.decode_context
            + c5 * shape.chunk_attention
            + c6 * shape.chunk_context
        )

    @property
    def fixed_s(self) -> float:
        """The part of a long step of one sequence that is the same however many tokens it computes."""
        a0, c1, c3, *_ = self.coefficients
        return max(0.0, a0 + c1 - c3 * self.knee_tokens)

    def predict_q95(self, shape: StepShape) -> float:
        """Return the seconds that 19 of 20 such steps stay within."""
        return self.predict(shape) * self.late_ratio(shape)

    def late_ratio(self, shape: StepShape) -> float:
        """Return the 95 % quantile of actual / predicted for such a step."""
        if self.chunk_band is not None and shape.has_chunk:
            return self.chunk_band.q95
        return self.ratio_q95

    def is_at_floor(self, shape: StepShape) -> bool:
        """True for a step with a chunk whose contents cost no more than the least time of such a step."""
        return self.chunk_floor_s > 0 and shape.has_chunk and self.above_floor(shape) <= self.chunk_floor_s

    def scaled(self, factor: float) -> CostModel:
        """Return the cost of steps that take this many times as long."""
        coefficients = tuple(factor * coefficient for coefficient in self.coefficients)
        return replace(self, coefficients=coefficients, chunk_floor_s=factor * self.chunk_floor_s)

    def with_ratios(self, ratios: Iterable[float]) -> CostModel:
        """Return the same costs with the quantiles of some actual / predicted; wild ones are left out."""
        return self if (band := Band.of(ratios)) is None else self.with_band(band)

    def with_band(self, band: Band) -> CostModel:
        """Return the same costs with the quantiles of all steps, or of those without a chunk."""
        return replace(self, ratio_q10=band.q10, ratio_q50=band.q50, ratio_q95=band.q95)

    def judged_by(self, samples: Iterable[Sample]) -> CostModel:
        """Return the same costs with the quantiles of some steps, by kind where chunks have a floor."""
        ratios: dict[bool, list[float]] = {False: [], True: []}
        for shape, seconds in samples:
            if (predicted := self.predict(shape)) > 0:
                ratios[self.chunk_floor_s > 0 and shape.has_chunk].append(seconds / predicted)
        return replace(self.with_ratios(ratios[False]), chunk_band=Band.of(ratios[True]))


UNKNOWN_COST = CostModel((0.0,) * NUM_COEFFICIENTS, 0.0, is_trusted=False)
"""Nothing has been measured yet."""


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the element of `ordered`, ascending and not empty, that a share `q` does not exceed."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def quickest(known: Sequence[CostModel], reported: CostModel, token_budget: int) -> tuple[CostModel, ...]:
    """Return the costs to remember: the quickest for a lone decode, and the quickest for a full prompt step.

    A worker reports its present step costs: higher ones while its machine is busy with something else, and
    untrusted ones while it relearns. An SLO that even the quickest costs could not keep was never possible,
    whatever it reports at the moment. Before it has measured anything, it reports every step as free; such a
    report is ignored.
    """
    if not any(reported.coefficients):
        return tuple(known)
    costs = (*known, reported)
    for_decode = _quickest_for(StepShape.of(1, 0, ()), costs)
    for_prompt = _quickest_for(StepShape.of(0, 0, [(0, token_budget)]), costs)
    return tuple(dict.fromkeys((for_decode, for_prompt)))


def _quickest_for(shape: StepShape, costs: Sequence[CostModel]) -> CostModel:
    # By what one in ten such steps does not exceed.
    def least_s(cost: CostModel) -> float:
        return (cost.of_chunks.q10 if shape.has_chunk else cost.ratio_q10) * cost.predict(shape)

    return min(costs, key=least_s)
