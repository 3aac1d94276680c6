"""Keep Python's cycle collector from stopping every thread of a serving process for long."""

from __future__ import annotations

import gc


def freeze_garbage() -> None:
    """Exclude objects made at start-up from collection: a pass over them takes tenths of a second."""
    gc.collect()
    gc.freeze()
