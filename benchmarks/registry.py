"""Every measurement there is, by the name it is asked for.

A module of one has `add_arguments(parser)` and `run(args) -> int`, the exit code; its docstring is its help.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """`module` is imported when it is asked for: some load torch."""

    module: str
    summary: str


COMMANDS: dict[str, Command] = {
    "bench": Command("benchmarks.fleets.bench", "a workload at a rate, under several policies side by side"),
    "batching": Command("benchmarks.fleets.batching", "continuous against static batching, three ratios"),
    "memory": Command(
        "benchmarks.costs.memory", "how much of the KV pool is at work, and what preemption costs"
    ),
    "plot": Command("benchmarks.plot", "a page from the JSON of measurements and simulations"),
    "fidelity": Command(
        "benchmarks.fleets.fidelity", "the simulator against a live fleet, request by request"
    ),
    "claims": Command("benchmarks.claims.command", "what is claimed of the scheduling, in simulation"),
    "fairness": Command(
        "benchmarks.fairness", "what a tenant gets beside one that asks for nine times as much"
    ),
    "many-routers": Command(
        "benchmarks.failures.many_routers", "two routers on one Redis, one of them killed"
    ),
    "soak": Command(
        "benchmarks.failures.soak", "whether anything grows until it stands still, at the size of cards"
    ),
    "leaving": Command("benchmarks.failures.leaving", "what a decode worker's leaving costs its streams"),
    "recovery": Command(
        "benchmarks.failures.recovery", "what a worker's and a router's death cost their streams"
    ),
    "cancel": Command(
        "benchmarks.failures.cancel", "how soon what was ended from outside is free, phase by phase"
    ),
    "verification": Command("benchmarks.costs.verification", "what checksums and each token once cost"),
    "step-error": Command("benchmarks.costs.step_error", "how well the cost model knows a step"),
    "deterministic": Command("benchmarks.costs.deterministic", "what the same bits in any company cost"),
    "quantisation": Command(
        "benchmarks.costs.quantisation", "what 8 bits cost in logits, and give in memory"
    ),
    "decisions": Command("benchmarks.costs.decisions", "how long pure decisions take"),
    "core-decisions": Command(
        "benchmarks.costs.core_decisions", "how long the router's core takes to decide"
    ),
}
