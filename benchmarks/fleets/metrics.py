"""What is measured, defined once.

TTFT: router receipt to first token leaving the router, queueing included. ITL: each gap between tokens.
TPOT: per request (last - first) / (tokens - 1), undefined for one token. Goodput: requests per second that
met every SLO they stated. Utilisation of KV: tokens held / slots allocated. All from raw monotonic timestamps
of one process; clocks of two hosts are never subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reporting.quantiles import quantiles
from reporting.summary import Summary


@dataclass(slots=True)
class RequestRecord:
    """One request as the load generator saw it; times in seconds of its monotonic clock."""

    sent_at: float
    prompt_tokens: int
    output_tokens: int
    slo_class: str
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    itl_slo_s: float | None = None
    token_times: list[float] = field(default_factory=list)
    """When each token arrived; tokens that came in one event share a time."""
    finished_at: float | None = None
    refused_after_s: float | None = None
    error: str = ""
    ttft_s: float | None = None
    """On the router's clock, from its `Finished` event."""
    tpot_s: float | None = None
    max_gap_s: float | None = None
    split_ms: dict[str, float] = field(default_factory=dict)
    promised_ttft_s: float | None = None

    @property
    def completed(self) -> bool:
        return self.finished_at is not None and not self.error

    @property
    def good(self) -> bool:
        """Finished and met every SLO it stated."""
        if not self.completed or self.ttft_s is None:
            return False
        if self.ttft_slo_s is not None and self.ttft_s > self.ttft_slo_s:
            return False
        if self.itl_slo_s is not None and self.max_gap_s is not None and self.max_gap_s > self.itl_slo_s:
            return False
        return self.tpot_slo_s is None or self.tpot_s is None or self.tpot_s <= self.tpot_slo_s

    @property
    def kept_ttft(self) -> bool:
        return self.ttft_s is not None and (self.ttft_slo_s is None or self.ttft_s <= self.ttft_slo_s)


def summarise(
    records: Sequence[RequestRecord],
    *,
    warmup_share: float = 0.1,
    kv_utilisation: float | None = None,
    router_cpu_us_per_token: float | None = None,
) -> Summary:
    """Fold a run's records; the first `warmup_share` of the requests by sending time is dropped."""
    ordered = sorted(records, key=lambda one: one.sent_at)
    kept = ordered[int(len(ordered) * warmup_share) :]
    started = kept[0].sent_at
    ends = [one.finished_at for one in kept if one.finished_at is not None]
    duration = max(max(ends, default=started) - started, 1e-9)
    sending = max(kept[-1].sent_at - started, 1e-9)
    done = [one for one in kept if one.completed]
    accepted = [one for one in kept if one.refused_after_s is None and one.ttft_slo_s is not None]
    output_tokens = sum(len(one.token_times) for one in done)
    return Summary(
        requests=len(kept),
        completed=len(done),
        refused=sum(one.refused_after_s is not None for one in kept),
        failed=sum(bool(one.error) for one in kept),
        duration_s=duration,
        offered_per_s=(len(kept) - 1) / sending,
        completed_per_s=len(done) / duration,
        goodput_per_s=sum(one.good for one in kept) / duration,
        good_share=sum(one.good for one in kept) / len(kept),
        accepted_that_kept_ttft=(
            sum(one.kept_ttft for one in accepted) / len(accepted) if accepted else None
        ),
        output_tokens_per_s=output_tokens / duration,
        total_tokens_per_s=(output_tokens + sum(one.prompt_tokens for one in done)) / duration,
        ttft=quantiles([one.ttft_s for one in done if one.ttft_s is not None]),
        itl=quantiles(
            [
                later - earlier
                for one in done
                for earlier, later in zip(one.token_times, one.token_times[1:], strict=False)
            ]
        ),
        tpot=quantiles([one.tpot_s for one in done if one.tpot_s is not None]),
        e2e=quantiles([one.finished_at - one.sent_at for one in done if one.finished_at is not None]),
        refusal=quantiles([one.refused_after_s for one in kept if one.refused_after_s is not None]),
        kv_utilisation=kv_utilisation,
        router_cpu_us_per_token=router_cpu_us_per_token,
    )
