"""`python -m prefill_worker`: runs prompts in chunks, emits the first tokens, offers the KV."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # Loading the modules below takes a while, in which Ctrl-C shall end this process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from worker.process.command import run
from worker.role import WorkerRole

if TYPE_CHECKING:  # they load torch
    from worker.handoff.sides import HandoffSides
    from worker.startup.build_sides import HandoffContext


def build_sides(context: HandoffContext) -> HandoffSides:
    """Build the sides of the handoff that this kind of worker has."""
    # Imported late: torch takes seconds to load, and a wrong flag should be reported at once.
    from prefill_worker import sides  # noqa: PLC0415

    return sides.build_sides(context)


if __name__ == "__main__":
    run(WorkerRole.PREFILL, build_sides)
