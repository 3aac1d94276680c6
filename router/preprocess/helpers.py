"""The end of a process that computes for the router: it ends with the router."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """End this process when the one that spawned it has ended, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "called in a spawned process"

    def wait() -> None:
        parent.join()
        os._exit(0)

    threading.Thread(target=wait, name="parent", daemon=True).start()
