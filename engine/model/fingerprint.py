"""A string for the weights and block layout of a worker; workers with equal ones may exchange KV."""

from __future__ import annotations

import hashlib
from pathlib import Path

from engine.kv.kv_pool import BlockLayout
from engine.model.checkpoint import weight_files
from engine.model.quantised.quantisation import Quantisation

# To read every byte of a 16 GB checkpoint would take as long as to load it. Up to this size a file is hashed
# whole. Of a larger one, the head (with every tensor's name, shape and place) and one page of each stretch
# are hashed: two trainings differ in practically every page.
WHOLE_FILE_BYTES = 256 << 20
HEAD_BYTES = 8 << 20
STRETCH_BYTES = 4 << 20
PAGE_BYTES = 64 << 10


def fingerprint(
    directory: Path,
    layout: BlockLayout,
    random_seed: int | None = None,
    quantisation: Quantisation = Quantisation.NONE,
) -> str:
    """Return a digest of config.json, weights, dtype and block layout, as 32 hexadecimal digits.

    Quantisation counts too, since it changes the KV. With a `random_seed`, weights were drawn from it, and no
    file of weights counts.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((layout.shape, str(layout.dtype), str(layout.stored))).encode())
    _add_weights(digest, directory, random_seed, quantisation)
    return digest.hexdigest()


def weights_digest(directory: Path, random_seed: int | None, quantisation: Quantisation) -> str:
    """Return a digest of config.json and weights, which can be told before they are loaded."""
    digest = hashlib.blake2b(digest_size=16)
    _add_weights(digest, directory, random_seed, quantisation)
    return digest.hexdigest()


def _add_weights(
    digest: hashlib.blake2b, directory: Path, random_seed: int | None, quantisation: Quantisation
) -> None:
    if quantisation is not Quantisation.NONE:
        digest.update(quantisation.value.encode())
    _add_file(digest, directory / "config.json")
    if random_seed is not None:
        digest.update(f"random weights {random_seed}".encode())
        return
    for path in weight_files(directory):
        _add_file(digest, path)


def _add_file(digest: hashlib.blake2b, path: Path) -> None:
    size = path.stat().st_size
    digest.update(f"{path.name}\0{size}\0".encode())
    with path.open("rb") as file:
        if size <= WHOLE_FILE_BYTES:
            while piece := file.read(1 << 20):
                digest.update(piece)
            return
        digest.update(file.read(HEAD_BYTES))
        for offset in range(HEAD_BYTES, size, STRETCH_BYTES):
            file.seek(offset)
            digest.update(file.read(PAGE_BYTES))
        file.seek(size - PAGE_BYTES)
        digest.update(file.read(PAGE_BYTES))
