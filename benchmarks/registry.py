"""All measurements by the names of their commands.

A command's module has `add_arguments(parser)` and `run(args)`, which returns the exit code. Its docstring is
the help.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A command; `module` is imported only when it runs, since some load torch."""

    module: str
    summary: str


COMMANDS: dict[str, Command] = {
    "bench": Command("benchmarks.fleets.bench", "a workload at a rate, under several policies side by side"),
    "batching": Command("benchmarks.fleets.batching", "continuous against static batching, three ratios"),
    "memory": Command(
        "benchmarks.costs.memory", "how much of the KV pool is used, and the cost of preemption"
    ),
    "plot": Command("benchmarks.plot", "a page from the JSON of measurements and simulations"),
    "fidelity": Command(
        "benchmarks.fleets.fidelity", "the simulator against a live fleet, request by request"
    ),
    "claims": Command("benchmarks.claims.command", "the claims about scheduling, in simulation"),
    "fairness": Command(
        "benchmarks.fairness", "the share of a tenant beside one that asks for nine times as much"
    ),
    "many-routers": Command(
        "benchmarks.failures.many_routers", "two routers on one Redis, one of them killed"
    ),
    "soak": Command(
        "benchmarks.failures.soak", "what grows until a process stalls, at the size of real cards"
    ),
    "leaving": Command("benchmarks.failures.leaving", "the pause of streams when a decode worker leaves"),
    "recovery": Command(
        "benchmarks.failures.recovery", "the pause of streams when a worker or a router dies"
    ),
    "cancel": Command(
        "benchmarks.failures.cancel", "how soon an ended request frees its resources, phase by phase"
    ),
    "verification": Command(
        "benchmarks.costs.verification", "the cost of checksums, and of relaying each token once"
    ),
    "step-error": Command("benchmarks.costs.step_error", "the error of the cost model"),
    "deterministic": Command("benchmarks.costs.deterministic", "the cost of deterministic mode"),
    "quantisation": Command(
        "benchmarks.costs.quantisation", "the change of logits by 8 bits, and the gain in memory"
    ),
    "decisions": Command("benchmarks.costs.decisions", "how long pure decisions take"),
    "core-decisions": Command(
        "benchmarks.costs.core_decisions", "how long the router's core takes to decide"
    ),
}
