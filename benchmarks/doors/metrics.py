"""The metrics of a measurement.

TTFT: router receipt to first token leaving the router, queueing included. ITL: each gap between tokens.
TPOT: per request (last - first) / (tokens - 1), undefined for one token. Goodput: requests per second that
met every SLO they stated. Utilisation of KV: tokens held / slots allocated. All from raw monotonic timestamps
of one process; clocks of two hosts are never subtracted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from baton import Slo
from sim.reporting.quantiles import quantiles
from sim.reporting.results import Summary


@dataclass(slots=True)
class RequestRecord:
    """A request as the load generator saw it; times in seconds of its monotonic clock."""

    sent_at: float
    prompt_tokens: int
    output_tokens: int
    slo: Slo = field(default_factory=Slo)
    token_times: list[float] = field(default_factory=list)
    """When each token arrived; tokens that came in one event share a time."""
    finished_at: float | None = None
    refused_after_s: float | None = None
    error: str = ""
    ttft_s: float | None = None
    """By the router's clock, from its `Finished` event."""
    tpot_s: float | None = None
    max_gap_s: float | None = None

    @property
    def completed(self) -> bool:
        return self.finished_at is not None and not self.error

    @property
    def states_slo(self) -> bool:
        return bool(self.slo.ttft_ms or self.slo.tpot_ms or self.slo.itl_ms)

    @property
    def good(self) -> bool:
        """Finished and met every SLO it stated."""
        kept_gaps = _within(self.max_gap_s, self.slo.itl_ms) and _within(self.tpot_s, self.slo.tpot_ms)
        return self.completed and self.kept_ttft and kept_gaps

    @property
    def kept_ttft(self) -> bool:
        return self.ttft_s is not None and _within(self.ttft_s, self.slo.ttft_ms)

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in itertools.pairwise(self.token_times)]


def _within(value_s: float | None, limit_ms: int | None) -> bool:
    return value_s is None or not limit_ms or value_s <= limit_ms / 1000


def summarise(
    records: Sequence[RequestRecord],
    *,
    warmup_share: float = 0.1,
    kv_utilisation: float | None = None,
    router_cpu_us_per_token: float | None = None,
) -> Summary:
    """Summarise a run's records, without the first `warmup_share` of the requests by sending time."""
    ordered = sorted(records, key=lambda record: record.sent_at)
    counted = ordered[int(len(ordered) * warmup_share) :]
    started = counted[0].sent_at
    ends = [record.finished_at for record in counted if record.finished_at is not None]
    duration = max(max(ends, default=started) - started, 1e-9)
    sending = max(counted[-1].sent_at - started, 1e-9)
    done = [record for record in counted if record.completed]
    accepted = [record for record in counted if record.refused_after_s is None and record.slo.ttft_ms]
    good = sum(record.good for record in counted) if any(record.states_slo for record in counted) else None
    output_tokens = sum(len(record.token_times) for record in done)
    kept_ttft = sum(record.kept_ttft for record in accepted)
    return Summary(
        requests=len(counted),
        completed=len(done),
        refused=sum(record.refused_after_s is not None for record in counted),
        failed=sum(bool(record.error) for record in counted),
        duration_s=duration,
        offered_per_s=(len(counted) - 1) / sending,
        completed_per_s=len(done) / duration,
        goodput_per_s=None if good is None else good / duration,
        good_share=None if good is None else good / len(counted),
        accepted_that_kept_ttft=kept_ttft / len(accepted) if accepted else None,
        output_tokens_per_s=output_tokens / duration,
        total_tokens_per_s=(output_tokens + sum(record.prompt_tokens for record in done)) / duration,
        ttft=quantiles(record.ttft_s for record in done),
        itl=quantiles(gap_s for record in done for gap_s in record.gaps_s),
        tpot=quantiles(record.tpot_s for record in done),
        e2e=quantiles(
            record.finished_at - record.sent_at for record in done if record.finished_at is not None
        ),
        refusal=quantiles(record.refused_after_s for record in counted),
        kv_utilisation=kv_utilisation,
        router_cpu_us_per_token=router_cpu_us_per_token,
    )
