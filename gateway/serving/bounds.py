"""Bounds for JSON bodies, found before anything looks inside, and work on large ones away from the loop.

A parser makes a Python object for each value, so 4 MiB of `{}` take far more time and memory than a text of
that length. Bodies of real callers have a few thousand objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES = 64 << 10
"""Bodies beyond this are counted before they are parsed, and parsed in a thread."""
MAX_CONTAINERS = 32_768
"""Objects and lists in one body."""
MAX_NAMES = 65_536
"""Names of fields in one body."""
MAX_ENTRIES = 1 << 20
"""Entries of lists and objects in one body: a prompt of token ids has one for each."""
MAX_TEXTS = 1 << 18
"""Texts in a body whose marks have to be told from those in its texts."""
_OTHER_BYTES = bytes(set(range(256)) - set(b'"{}[],:'))

_large_work = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")
"""One thread: large bodies wait for each other, and the loop has its turn after each."""


def excess(body: bytes) -> str:
    """Return what a JSON body has too much of, with what is accepted; empty if nothing."""
    if len(body) <= LARGE_BYTES or not _excess(body):
        return ""
    marks = body.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _OTHER_BYTES)
    num_texts = marks.count(b'"') // 2
    if num_texts > MAX_TEXTS:
        return f"{num_texts} texts; accepted: at most {MAX_TEXTS}"
    # Marks inside of texts do not count. If the body is not JSON, this is right up to its first error, where
    # a parser stops.
    return _excess(b"".join(marks.split(b'"')[::2]))


def _excess(marks: bytes) -> str:
    for what, found, most in (
        ("objects and lists", marks.count(b"{") + marks.count(b"["), MAX_CONTAINERS),
        ("names of fields", marks.count(b":"), MAX_NAMES),
        ("entries", marks.count(b","), MAX_ENTRIES),
    ):
        if found > most:
            return f"{found} {what}; accepted: at most {most}"
    return ""


async def away_from_loop(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of work on this many bytes, done at once if they are few."""
    if size <= LARGE_BYTES:
        return work(*args, **kwargs)
    run = partial(copy_context().run, work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_large_work, run)
