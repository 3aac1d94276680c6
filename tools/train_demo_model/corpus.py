"""The source of the text: a folder of .rst/.txt files, or Debian's package of Python's documentation."""

import hashlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "python3.11-doc"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of documentation: its name relative to the corpus folder, and its text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """The files split once, by name: nothing in `held_out` is ever trained on, chats included."""

    train: tuple[SourceFile, ...]
    held_out: tuple[SourceFile, ...]


def fetch_package(folder: Path) -> Path:
    """Download and unpack the Debian package into `folder`; return the folder holding its sources.

    Needs apt-get and dpkg-deb, not root. Elsewhere, pass the sources by `--corpus`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob(f"{PACKAGE}_*.deb")):
        # Both tools are looked up on PATH: where they lie is the system's affair.
        subprocess.run(["apt-get", "download", PACKAGE], cwd=folder, check=True)
    package = next(folder.glob(f"{PACKAGE}_*.deb"))
    unpacked = folder / "unpacked"
    subprocess.run(["dpkg-deb", "-x", str(package), str(unpacked)], check=True)
    return next(unpacked.rglob("_sources"))


def read_corpus(folder: Path, seed: int, held_out_share: float) -> Corpus:
    """Read every .rst and .txt file under `folder`, in order of name, and hold out a share by name.

    Raises ValueError if the folder is too small to give both parts a file.
    """
    files = tuple(_read_files(folder))
    held_out = tuple(file for file in files if is_held_out(file.name, seed, held_out_share))
    train = tuple(file for file in files if not is_held_out(file.name, seed, held_out_share))
    if not train or not held_out:
        raise ValueError(f"corpus={folder}: {len(files)} .rst/.txt files, too few to train and to hold out")
    return Corpus(train=train, held_out=held_out)


def is_held_out(name: str, seed: int, share: float) -> bool:
    """Return True if the file of this name is held out: a seeded hash, so adding a file moves no other."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def _read_files(folder: Path) -> Iterator[SourceFile]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".rst", ".txt"} and path.is_file():
            yield SourceFile(path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8"))
