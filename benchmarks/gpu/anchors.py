"""Figures of vLLM, and goals: the Llama-3.1-8B shape on one H200.

Random bf16 weights, streamed through its AsyncLLM in one process, prefix cache off, 512 sequences at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sim.reporting.section import Goal, table

VLLM = "vLLM 0.25.1 on an H200"
MEASURED_ON = "2026-11-21"
VLLM_DECODE_MS = {1: 4.9, 8: 5.2, 32: 6.3, 64: 8.0, 128: 11.5, 256: 20.3}
"""By batch size, at contexts of 1024 to 1160 tokens."""
VLLM_OVER_FLOOR = {1: 1.45, 8: 1.44, 32: 1.44, 64: 1.48, 128: 1.55, 256: 1.56}
TTFT_MS, TPOT_MS = 1000, 30
READ_SHARE = ", share of the read rate"


@dataclass(frozen=True, slots=True)
class Anchor:
    """vLLM's figure, and the goal; None if there is none."""

    theirs: float | None = None
    goal: float | None = None
    at_least: bool = True
    spec: str = ".4g"

    def goal_of(self, name: str, *figures: float) -> Goal:
        assert self.goal is not None
        return Goal(name, figures, self.goal, self.at_least, self.spec)


ANCHORS = {
    **{
        f"decode step / floor at {batch}": Anchor(theirs, 1.2 if batch <= 64 else 1.25, False, ".2f")
        for batch, theirs in VLLM_OVER_FLOOR.items()
    },
    "prefill 16 × 2048, tok/s": Anchor(41_300, 45_000, spec=".0f"),
    "prefill 4 × 8192, tok/s": Anchor(37_100, 41_000, spec=".0f"),
    "burst, output tok/s": Anchor(5_620, 1.15 * 5_620, spec=".0f"),
    "chat at 8/s, good/s": Anchor(8.0),
    "chat at 12/s, good/s": Anchor(5.4),
    "chat at 16/s, good/s": Anchor(0.0, 12.0),
    **{f"chat at {rate}/s, good / bound": Anchor(goal=0.9, spec=".2f") for rate in (8, 12, 16)},
    "busy, least share": Anchor(goal=0.97, spec=".1%"),
    "handoff, hidden share": Anchor(goal=0.9, spec=".1%"),
    **{
        f"paged_decode, {size}{READ_SHARE}": Anchor(goal=0.85, spec=".0%")
        for size in ("32 × 4096", "256 × 1024")
    },
    "deterministic step / plain": Anchor(goal=1.2, at_least=False, spec=".2f"),
}
"""Every figure that is compared, by its name."""


def theirs(name: str) -> float | None:
    """Return vLLM's figure; None if it is not known."""
    return ANCHORS[name].theirs if name in ANCHORS else None


def goals(figures: Mapping[str, float]) -> Iterator[Goal]:
    """Yield the goals of those figures that have one."""
    for name, figure in figures.items():
        if name in ANCHORS and ANCHORS[name].goal is not None:
            yield ANCHORS[name].goal_of(name, figure)


def comparison(figures: Mapping[str, float]) -> str:
    """Return the table to look at first: every figure, vLLM's, the goal, and the measurement."""
    columns = {
        "figure": lambda name: name,
        f"{VLLM}, {MEASURED_ON}": lambda name: in_words(theirs(name), ANCHORS[name].spec),
        "goal": lambda name: "–" if ANCHORS[name].goal is None else ANCHORS[name].goal_of(name).row()[1],
        "measured here": lambda name: in_words(figures.get(name), ANCHORS[name].spec, "not measured"),
    }
    return table(ANCHORS, columns)


def in_words(figure: float | None, spec: str = "g", missing: str = "–") -> str:
    return missing if figure is None else format(figure, spec)
