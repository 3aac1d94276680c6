"""What is checked before a worker says that it serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata

from state.records import WorkerRecord
from worker.errors import ForeignFleetError, ForeignKernelsError


def check_kernels(distributions: Mapping[str, Sequence[str]] | None = None) -> None:
    """Refuses an environment in which `import kernels` could mean another package than ours.

    Hugging Face's is called that too; whichever is found first would be taken for the other.
    """
    known = metadata.packages_distributions() if distributions is None else distributions
    for distribution in known.get("kernels", ()):
        if distribution != "baton":
            raise ForeignKernelsError(distribution)


def check_fleet(own: WorkerRecord, fleet: Iterable[WorkerRecord]) -> None:
    """Refuses to join workers whose KV means something else; a former process of this one is none of them."""
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
