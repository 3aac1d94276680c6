"""The figures of a run, live or simulated. Times are seconds, rates per second, shares of 1."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from reporting.quantiles import Quantiles


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run."""

    requests: int
    completed: int
    refused: int
    failed: int
    duration_s: float
    offered_per_s: float
    completed_per_s: float
    goodput_per_s: float
    good_share: float
    """The share of all requests sent."""
    accepted_that_kept_ttft: float | None
    """The share of accepted requests with a TTFT limit that met it."""
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft: Quantiles | None
    itl: Quantiles | None
    tpot: Quantiles | None
    e2e: Quantiles | None
    refusal: Quantiles | None
    """Seconds until a refusal came."""
    kv_utilisation: float | None = None
    router_cpu_us_per_token: float | None = None
    busy_share: float | None = None
    """The share of the workers' time in which they computed."""
    kv_allocated: float | None = None
    """The share of the decode workers' pools that is allocated or promised."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)
