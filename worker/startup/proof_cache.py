"""Keeps the proof of a model that is not on the list, so that the next start need not compute it again.

There is one JSON file for each `ProofKey`, written when the proof is complete.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.proof.proving import Proof
from engine.proof.versions import TORCH, TRANSFORMERS
from worker.startup.kept_files import file_name, keep, kept

FORMAT = 1


@dataclass(frozen=True, slots=True)
class ProofKey:
    """Everything that the outcome of a proof depends on."""

    weights: str
    device: str
    dtype: str
    deterministic: bool
    fusion: bool
    block_size: int
    native_ops: str
    code: str
    torch: str = TORCH
    transformers: str = TRANSFORMERS


class ProofFile:
    """The file in `folder` that has the proof for a key, if there is one."""

    def __init__(self, folder: Path, key: ProofKey) -> None:
        self.path = folder / file_name(asdict(key))
        self._key = key

    def read(self) -> Proof | None:
        return kept(self.path, self._parse, "proof_ignored")

    def write(self, proof: Proof) -> None:
        document = {"format": FORMAT, "key": asdict(self._key), "proof": asdict(proof)}
        keep(self.path, document, "proof_not_kept")

    def _parse(self, document: Any) -> Proof:
        if document["format"] != FORMAT or document["key"] != asdict(self._key):
            raise ValueError("it belongs to another worker")
        fields = document["proof"]
        numbers = (float(fields[name]) for name in ("difference", "noise", "seconds"))
        return Proof(bool(fields["is_fused"]), bool(fields["in_float32"]), *numbers)
