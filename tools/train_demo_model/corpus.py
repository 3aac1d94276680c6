"""The text to train on, from a folder of .rst/.txt files or Debian's package of Python's documentation."""

import hashlib
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.train_demo_model.chats import chats_of
from tools.train_demo_model.checkpoint import BOS, END, EOS
from tools.train_demo_model.restructured import Kind, parse_blocks

PACKAGE = "python3.11-doc"


@dataclass(frozen=True, slots=True)
class Corpus:
    """The text of each file by its name, split once: nothing in `held_out` is ever trained on."""

    train: dict[str, str]
    held_out: dict[str, str]


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
    corpus = Corpus({}, {})
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".rst", ".txt"} and path.is_file():
            name = path.relative_to(folder).as_posix()
            part = corpus.held_out if is_held_out(name, seed, held_out_share) else corpus.train
            part[name] = path.read_text(encoding="utf-8")
    if not corpus.train or not corpus.held_out:
        num_files = len(corpus.train) + len(corpus.held_out)
        raise ValueError(f"corpus={folder}: {num_files} .rst/.txt files, too few to train and to hold out")
    return corpus


def is_held_out(name: str, seed: int, share: float) -> bool:
    """Return True if the file of this name is held out: a seeded hash, so adding a file moves no other."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def readable_text(source: str) -> str:
    """Return a file as plain text: headings marked with '# ', blocks separated by an empty line."""
    blocks = parse_blocks(source)
    return "\n\n".join(f"# {b.text}" if b.kind is Kind.HEADING else b.text for b in blocks)


def training_documents(corpus: Corpus) -> list[str]:
    """Return the files to train on as text between the tokens that begin and end it."""
    return [f"{BOS}{readable_text(source)}{EOS}" for source in corpus.train.values()]


def training_chats(corpus: Corpus, seed: int) -> list[str]:
    """Return the conversations made from the same files, shuffled, as the chat template renders them."""
    rng = random.Random(seed)
    chats = [
        BOS + "".join(f"<|{role}|>{content}{END}" for role, content in chat)
        for source in corpus.train.values()
        for chat in chats_of(parse_blocks(source), rng)
    ]
    rng.shuffle(chats)
    return chats
