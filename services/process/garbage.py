"""Python's cycle collector in a process that serves: each pass over all objects stops every thread."""

from __future__ import annotations

import gc


def freeze_garbage() -> None:
    """Exclude objects made at start-up from collection: a pass over them takes tenths of a second."""
    gc.collect()
    gc.freeze()
