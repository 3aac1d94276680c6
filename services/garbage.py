"""Python's cycle collector in a process that serves: each look through all objects stops every thread."""

from __future__ import annotations

import gc


def freeze_garbage() -> None:
    """Take what start-up has made out of its sight: a look through all of that takes tenths of a second."""
    gc.collect()
    gc.freeze()
