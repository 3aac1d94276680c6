"""Which weights and which block layout a worker serves, as one string: equal fingerprints may exchange KV."""

from __future__ import annotations

import hashlib
from pathlib import Path

from engine.kv.kv_pool import BlockLayout
from engine.model.quantisation import Quantisation

# Reading every byte of a 16 GB checkpoint would take as long as loading it. Up to this size a file is hashed
# whole; above, its head (which holds every tensor's name, shape and place) and one page of each stretch are.
# Two trainings differ in practically every page, so sampling tells them apart as surely as it must.
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
    """Digest of config.json, the weights' content, the dtype and the block layout; 32 hexadecimal digits.

    What is kept in 8 bits counts too: it gives other KV. With a `random_seed` the weights were drawn from it,
    and no file of weights counts.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((layout.shape, str(layout.dtype), str(layout.stored))).encode())
    if quantisation is not Quantisation.NONE:
        digest.update(quantisation.value.encode())
    _add_file(digest, directory / "config.json")
    if random_seed is not None:
        digest.update(f"random weights {random_seed}".encode())
        return digest.hexdigest()
    for path in sorted(directory.glob("*.safetensors")):
        _add_file(digest, path)
    return digest.hexdigest()


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
