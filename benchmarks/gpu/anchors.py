"""Figures of vLLM, and goals: the Llama-3.1-8B shape on one H200.

Random bf16 weights, streamed through its AsyncLLM in one process, prefix cache off, 512 sequences at most.
"""

from __future__ import annotations

from dataclasses import dataclass

from reporting.section import Goal

VLLM = "0.25.1 on an H200, 2026-11-21"
VLLM_DECODE_MS = {1: 4.9, 8: 5.2, 32: 6.3, 64: 8.0, 128: 11.5, 256: 20.3}
"""By batch size, at contexts of 1024 to 1160 tokens."""
VLLM_OVER_FLOOR = {1: 1.45, 8: 1.44, 32: 1.44, 64: 1.48, 128: 1.55, 256: 1.56}
BUSY_GOAL = 0.97
HIDDEN_GOAL = 0.9
DETERMINISTIC_GOAL = 1.2
DECODE_KERNEL_GOAL = 0.85
BOUND_SHARE = 0.9
TTFT_MS, TPOT_MS = 1000, 30


@dataclass(frozen=True, slots=True)
class Anchor:
    """A figure of vLLM's and the goal; higher is better."""

    theirs: float
    goal: float
    unit: str


ANCHORS = {
    "prefill 16 × 2048": Anchor(41_300, 45_000, "tok/s"),
    "prefill 4 × 8192": Anchor(37_100, 41_000, "tok/s"),
    "burst": Anchor(5_620, 1.15 * 5_620, "output tok/s"),
    "chat at 8/s": Anchor(8.0, 0.0, "good requests/s"),
    "chat at 12/s": Anchor(5.4, 0.0, "good requests/s"),
    "chat at 16/s": Anchor(0.0, 12.0, "good requests/s"),
}


def decode_goal(batch: int) -> float:
    """Return the most that a step may take, as a multiple of its floor."""
    return 1.2 if batch <= 64 else 1.25


def decode_ms(batch: int) -> str:
    """Return vLLM's figure for a table."""
    return f"{VLLM_DECODE_MS[batch]} ({VLLM_OVER_FLOOR[batch]} ×)" if batch in VLLM_DECODE_MS else "–"


def text(name: str) -> str:
    """Return vLLM's figure for a table."""
    return f"{ANCHORS[name].theirs:g}" if name in ANCHORS else "–"


def goals(name: str, figure: float) -> list[Goal]:
    """Return the goal of a figure, if it has one."""
    anchor = ANCHORS.get(name)
    if anchor is None or not anchor.goal:
        return []
    return [Goal(f"{name}, {anchor.unit}", (figure,), anchor.goal, spec=".4g")]


def comparison(found: dict[str, float]) -> list[tuple[str, str, str, str]]:
    """Return rows of figure, vLLM's, the goal and the measurement: the table to look at first."""
    rows = [
        (
            f"decode step / floor at {batch}",
            f"{theirs:.2f}",
            f"≤ {decode_goal(batch):g}",
            _figure(found.get(f"decode {batch}"), ".2f"),
        )
        for batch, theirs in VLLM_OVER_FLOOR.items()
    ]
    rows += [
        (
            f"{name}, {anchor.unit}",
            f"{anchor.theirs:g}",
            f"≥ {anchor.goal:.0f}" if anchor.goal else "–",
            _figure(found.get(name), ".4g"),
        )
        for name, anchor in ANCHORS.items()
    ]
    for name, goal in (("busy", BUSY_GOAL), ("hidden", HIDDEN_GOAL)):
        rows.append((f"{name}, share", "–", f"≥ {goal:g}", _figure(found.get(name), ".3f")))
    rows.append(
        (
            "deterministic step / plain",
            "–",
            f"≤ {DETERMINISTIC_GOAL:g}",
            _figure(found.get("deterministic"), ".2f"),
        )
    )
    return rows


def _figure(value: float | None, spec: str) -> str:
    return "not measured" if value is None else format(value, spec)
