"""Checks that a worker makes before it serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata

from state.records import WorkerRecord
from worker.errors import ForeignFleetError, ForeignKernelsError


def check_kernels(distributions: Mapping[str, Sequence[str]] | None = None) -> None:
    """Refuse an environment in which `import kernels` could import another package.

    Hugging Face has a package of that name; whichever is found first would be imported.
    """
    known = metadata.packages_distributions() if distributions is None else distributions
    for distribution in known.get("kernels", ()):
        if distribution != "baton":
            raise ForeignKernelsError(distribution)


def check_fleet(own: WorkerRecord, fleet: Iterable[WorkerRecord]) -> None:
    """Refuse to join workers whose KV differs; an earlier process of this worker does not count."""
    for other in fleet:
        if other.worker_id == own.worker_id:
            continue
        if other.block_size != own.block_size:
            raise ForeignFleetError("--block-size", own.block_size, other.block_size, other.worker_id)
        if other.fingerprint != own.fingerprint:
            raise ForeignFleetError(
                "fingerprint (of weights, dtype, quantisation and layout)",
                own.fingerprint,
                other.fingerprint,
                other.worker_id,
            )
        if other.sameness != own.sameness:
            has, others = _describe_digest(own.sameness), _describe_digest(other.sameness)
            raise ForeignFleetError("--deterministic", has, others, other.worker_id)


def _describe_digest(digest: str) -> str:
    return f"on, with logits {digest}" if digest else "off"
