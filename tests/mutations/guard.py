"""A failure of a serving system, and the guards against it here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Guard:
    """`text` occurs once in the file `path`; with `without` in its place the test has to fail."""

    path: str
    text: str
    without: str
    test: str

    def taken_out(self, root: Path) -> str:
        """The file in the tree `root` without it. Raises ValueError where it does not stand there once."""
        whole = (root / self.path).read_text(encoding="utf-8")
        if self.text == self.without or whole.count(self.text) != 1:
            raise ValueError(f"{self.path} has {whole.count(self.text)} of {self.text!r}; accepted: 1")
        return whole.replace(self.text, self.without)


@dataclass(frozen=True, slots=True)
class Failure:
    """A way in which another serving system failed."""

    name: str
    peers: str
    what: str
    guards: tuple[Guard, ...]
