"""The parts of a request that are left out: named in a header of the response, and in the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import quote

from gateway.errors import invalid

HEADER = b"x-baton-ignored"
MAX_NAME, MAX_CHARACTERS = 96, 1024
"""The most of one path, and of all of them together: callers choose the names of their fields."""
_MORE = "..."
_SAFE = "[]$@:+"
"""Signs of a path that stand as they are; others than letters, digits and `_.-~` become %XX."""


@dataclass(slots=True)
class Ignored:
    """The paths of what one request has and this fleet does not serve, each once."""

    is_strict: bool = False
    """Whether the request is refused instead."""
    below: str = ""
    """The path at which the body lies that is looked at: a batch's line has it in a field."""
    _names: dict[str, None] = field(default_factory=dict)
    _size: int = 0

    def add(self, param: str) -> None:
        name = quote((self.below + param)[:MAX_NAME], safe=_SAFE)
        if name in self._names or _MORE in self._names:
            return
        if self._size + len(name) + 1 > MAX_CHARACTERS - len(_MORE):
            name = _MORE
        self._names[name] = None
        self._size += len(name) + 1

    def __str__(self) -> str:
        """Return the paths as the header has them; `...` at the end stands for more."""
        return ",".join(self._names)


ignored: ContextVar[Ignored | None] = ContextVar("ignored", default=None)
"""The parts that the HTTP request being served leaves out."""


def leave_out(param: str, message: str, *, code: str = "invalid_field") -> None:
    """Note that the part at this path is left out. Where requests are strict, raise `ApiError` instead."""
    known = ignored.get()
    if known is None:
        return
    if known.is_strict:
        raise invalid(param, message, code=code)
    known.add(param)


@contextmanager
def lying_in(name: str) -> Iterator[None]:
    """Name paths as those of a body that lies in this field of another one."""
    known = ignored.get() or Ignored()
    known.below = f"{name}."
    try:
        yield
    finally:
        known.below = ""
