"""Tables of a comparison: the limits, the engines side by side, and the parts of a step."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.cpu.arms import Arm
from benchmarks.cpu.comparison import Comparison
from benchmarks.cpu.engines.loads import CHECKED, LOADS, ONE_DECODE, PREFILL, Load
from benchmarks.cpu.floors import Limits, Need
from benchmarks.cpu.shares import PARTS, Shares
from sim.reporting.section import markdown, ratios
from sim.reporting.tables import cell

NOT_MEASURED = "not measured"
READING = "one decode, by the time to read its weights"
MULTIPLYING = f"{PREFILL.name}, by the time to multiply it"
FIRST_TOKENS = "first tokens that are those of float32"


def limits_table(limits: Sequence[Limits]) -> str:
    """Return the rates at which the machine reads memory and multiplies."""
    read = [each.read_bytes_per_s for each in limits]
    rows = [("memory, GB/s", cell(read, 1e-9, ".1f"))]
    rows += [
        (f"matrix product, {dtype}, GFLOP/s", cell([each.flops[dtype] for each in limits], 1e-9, ".0f"))
        for dtype in limits[0].flops
    ]
    return markdown(("all threads", "measured"), rows)


def engines_table(comparison: Comparison, need: Need, dtype: str) -> str:
    """Return a column for each arm, then how many times as fast as the best peer each arm of Baton is.

    The last rows say how many times as long as the machine must take a decode and, if weights are floats, a
    prompt last, and how many first tokens are those that the same weights have in float32.
    """
    own = [arm for arm in comparison.arms if arm.is_own]
    header = (
        "load",
        "unit",
        *(arm.name for arm in comparison.arms),
        "best peer",
        *(f"{arm.name} / best" for arm in own),
    )
    rows = [
        (
            load.name,
            load.unit,
            *(_cell(comparison.figures(load, arm), load.spec) for arm in comparison.arms),
            *_beside_best(comparison, load),
        )
        for load in LOADS
    ]
    empty = [""] * (1 + len(own))
    return markdown(header, [*rows, *((*row, *empty) for row in _floors(comparison, need, dtype))])


def _floors(comparison: Comparison, need: Need, dtype: str) -> Iterator[tuple[str, ...]]:
    arms, limits = comparison.arms, comparison.limits
    yield (
        READING,
        "times",
        *(
            _over(comparison, ONE_DECODE, arm, [need.decode_s(each, dtype, arm.bits) for each in limits])
            for arm in arms
        ),
    )
    if all(arm.bits.layers is None for arm in arms):
        floors_s = [need.prefill_s(each, dtype) for each in limits]
        yield (MULTIPLYING, "times", *(_over(comparison, PREFILL, arm, floors_s) for arm in arms))
    yield (FIRST_TOKENS, "tokens", *(_agreement(comparison, arm) for arm in arms))


def best_peer(comparison: Comparison, load: Load) -> Arm | None:
    """Return the fastest arm of others by its median; None if none was measured."""
    measured = {arm: comparison.figures(load, arm) for arm in comparison.arms if not arm.is_own}
    medians = {arm: statistics.median(figures) for arm, figures in measured.items() if figures}
    best = min if load.num_steps else max
    return best(medians, key=medians.__getitem__, default=None)


def speedups(comparison: Comparison, load: Load, arm: Arm, peer: Arm) -> Sequence[float]:
    """Return how many times as fast as a peer an arm is, seed by seed; nothing if either is missing."""
    ours, theirs = comparison.figures(load, arm), comparison.figures(load, peer)
    if not (ours and theirs):
        return ()
    return ratios(theirs, ours) if load.num_steps else ratios(ours, theirs)


def _beside_best(comparison: Comparison, load: Load) -> Iterator[str]:
    peer = best_peer(comparison, load)
    yield NOT_MEASURED if peer is None else peer.name
    for arm in comparison.arms:
        if arm.is_own:
            yield _cell(() if peer is None else speedups(comparison, load, arm, peer))


def _over(comparison: Comparison, load: Load, arm: Arm, floors_s: Sequence[float]) -> str:
    played = comparison.played[load].get(arm.name, ())
    return _cell(ratios([each.step_s or each.total_s for each in played], floors_s) if played else ())


def _agreement(comparison: Comparison, arm: Arm) -> str:
    played, exact = comparison.played[CHECKED].get(arm.name, ()), comparison.exact.get(arm.exact, ())
    pairs = [
        pair
        for own, other in zip(played, exact, strict=bool(played and exact))
        for pair in zip(own.first_tokens, other.first_tokens, strict=True)
    ]
    same = sum(own == other for own, other in pairs)
    return f"{same} of {len(pairs)}" if pairs else NOT_MEASURED


def shares_table(by_engine: Mapping[str, Sequence[Shares]]) -> str:
    """Return the time of a step by its parts, with a column for each load."""
    header = ("part", *by_engine)
    whole = ("whole step, ms", *(cell([each.step_s for each in of], 1e3) for of in by_engine.values()))
    rows = [(part, *(_part(of, index) for of in by_engine.values())) for index, part in enumerate(PARTS)]
    return markdown(header, [*rows, whole])


def _part(shares: Sequence[Shares], index: int) -> str:
    share = cell([each.shares[index] for each in shares], 100, ".1f")
    return f"{share} %, {cell([each.parts_s[index] for each in shares], 1e6, '.0f')} µs"


def data_of(comparison: Comparison) -> dict[str, Any]:
    """Return everything measured for JSON; of tokens, how many first ones are those of float32."""
    played = {
        load.name: {
            name: [{"total_s": each.total_s, "step_s": each.step_s} for each in of]
            for name, of in comparison.played[load].items()
        }
        for load in LOADS
    }
    first_tokens = {arm.name: _agreement(comparison, arm) for arm in comparison.arms}
    limits = [asdict(each) for each in comparison.limits]
    return {"limits": limits, "played": played, "first_tokens": first_tokens}


def _cell(figures: Sequence[float], spec: str = ".2f") -> str:
    return cell(figures, spec=spec) if figures else NOT_MEASURED
