"""One generation's outcome in words."""

from __future__ import annotations

from baton.types import Finished, FinishReason


def split_line(finished: Finished, reasons: list[FinishReason], resumes: int) -> str:
    """Tokens, times and where they went, on one line."""
    delivery, split = finished.delivery, finished.split
    tpot = "" if delivery.tpot_ms is None else f" · TPOT {delivery.tpot_ms:.1f} ms"
    where = (
        f"queue {split.queue_ms:.0f} + prefill {split.prefill_ms:.0f} + handoff {split.handoff_ms:.0f}"
        f" + decode {split.decode_ms:.0f} + relay {split.relay_ms:.0f} ms"
    )
    parts = [
        f"{finished.usage.output_tokens} tokens ({', '.join(reasons)}) in {delivery.e2e_ms:.0f} ms",
        f"TTFT {delivery.ttft_ms:.0f} ms{tpot}",
        where,
    ]
    if finished.path is not None:
        parts.append(finished.path)
    if finished.usage.cached_prompt_tokens:
        parts.append(f"{finished.usage.cached_prompt_tokens} prompt tokens cached")
    if finished.usage.attempts > 1:
        parts.append(f"{finished.usage.attempts} attempts")
    if resumes:
        parts.append(f"resumed {resumes} ×")
    if broken := broken_promises(finished):
        parts.append(f"promise broken: {broken}")
    return " · ".join(parts)


def broken_promises(finished: Finished) -> str:
    """Which stated promises were not kept; empty when all were, or none was asked for."""
    promise, delivery = finished.promise, finished.delivery
    kept = (
        ("TTFT", promise.ttft_ms, delivery.ttft_kept),
        ("TPOT", promise.tpot_ms, delivery.tpot_kept),
        ("ITL", promise.itl_ms, delivery.itl_kept),
    )
    return " and ".join(name for name, stated, is_kept in kept if stated is not None and not is_kept)
