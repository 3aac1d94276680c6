"""Tables of a comparison: the limits, the engines side by side, both together, and the parts of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.cpu.comparison import ENGINES, Comparison
from benchmarks.cpu.engines.baton_engine import NAME
from benchmarks.cpu.engines.loads import LOADS, ONE_DECODE, PREFILL, Load
from benchmarks.cpu.floors import Limits, Need
from benchmarks.cpu.shares import PARTS, Shares
from sim.reporting.section import markdown, ratios
from sim.reporting.tables import cell

NOT_MEASURED = "not measured"
PEERS = tuple(name for name in ENGINES if name != NAME)


def limits_table(limits: Sequence[Limits]) -> str:
    """Return the rates at which the machine reads memory and multiplies."""
    read = [each.read_bytes_per_s for each in limits]
    rows = [("memory, GB/s", cell(read, 1e-9, ".1f"))]
    rows += [
        (f"matrix product, {dtype}, GFLOP/s", cell([each.flops[dtype] for each in limits], 1e-9, ".0f"))
        for dtype in limits[0].flops
    ]
    return markdown(("all threads", "measured"), rows)


def engines_table(comparison: Comparison) -> str:
    """Return a column for each engine, then how many times as fast as each of the others Baton is."""
    header = ("load", "unit", *ENGINES, *(f"{NAME} / {peer}" for peer in PEERS))
    rows = [
        (
            load.name,
            load.unit,
            *(_cell(comparison.figures(load, engine), load.spec) for engine in ENGINES),
            *(_cell(speedups(comparison, load, peer)) for peer in PEERS),
        )
        for load in LOADS
    ]
    return markdown(header, rows)


def speedups(comparison: Comparison, load: Load, peer: str) -> Sequence[float]:
    """Return how many times as fast as a peer Baton is, seed by seed; nothing if the peer is missing."""
    ours, theirs = comparison.figures(load, NAME), comparison.figures(load, peer)
    if not theirs:
        return ()
    return ratios(theirs, ours) if load.num_steps else ratios(ours, theirs)


def floors_table(comparison: Comparison, need: Need, dtype: str) -> str:
    """Return the least times of a step and of a prompt, and how many times as long each engine takes."""
    floors = {
        ONE_DECODE: [need.decode_s(limits, dtype) for limits in comparison.limits],
        PREFILL: [need.prefill_s(limits, dtype) for limits in comparison.limits],
    }
    header = ("load", "floor, ms", *(f"{engine} / floor" for engine in ENGINES))
    rows = [
        (
            load.name,
            cell(seconds, 1e3, ".1f"),
            *(_cell(_over(comparison, load, engine, seconds)) for engine in ENGINES),
        )
        for load, seconds in floors.items()
    ]
    return markdown(header, rows)


def _over(comparison: Comparison, load: Load, engine: str, floors_s: Sequence[float]) -> Sequence[float]:
    played = comparison.played[load].get(engine, ())
    return ratios([each.step_s or each.total_s for each in played], floors_s) if played else ()


def agreement(comparison: Comparison) -> str:
    """Return how many outputs begin with the same token as Baton's, for each peer that was measured."""
    counts = []
    for peer in PEERS:
        pairs = [
            pair
            for engines in comparison.played.values()
            for own, other in zip(engines.get(NAME, ()), engines.get(peer, ()), strict=False)
            for pair in zip(own.first_tokens, other.first_tokens, strict=True)
        ]
        if pairs:
            same = sum(ours == theirs for ours, theirs in pairs)
            counts.append(f"{peer} {same} of {len(pairs)}")
    return f"First tokens equal to {NAME}'s: {', '.join(counts)}." if counts else ""


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
    """Return everything measured for JSON, except the tokens."""
    played = {
        load.name: {
            engine: [{"total_s": each.total_s, "step_s": each.step_s} for each in of]
            for engine, of in engines.items()
        }
        for load, engines in comparison.played.items()
    }
    return {"limits": [asdict(each) for each in comparison.limits], "played": played}


def _cell(figures: Sequence[float], spec: str = ".2f") -> str:
    return cell(figures, spec=spec) if figures else NOT_MEASURED
