"""The code that a proof is valid for: Baton's own, torch's and transformers'."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

import engine
import kernels

SUFFIXES = (".c", ".h", ".py")


TORCH: str = torch.__version__
TRANSFORMERS: str = transformers.__version__


def own_code() -> str:
    """Return a digest of the code that computes a model's steps."""
    return code_digest([Path(package.__path__[0]) for package in (engine, kernels)])


def code_digest(folders: Sequence[Path]) -> str:
    """Return a digest of all source files in these folders."""
    digest = hashlib.blake2b(digest_size=16)
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES):
            digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
