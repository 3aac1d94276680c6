"""`python -m decode_worker`: fetches KV, runs decode steps, and prefill chunks inside them when told to."""

from __future__ import annotations

import sys

from worker.config import config_of_process
from worker.identity import WorkerRole
from worker.startup.starting import begin

if __name__ == "__main__":
    config = config_of_process(WorkerRole.DECODE)
    start = begin(config, WorkerRole.DECODE)
    # Imported late: torch takes seconds to load, and a wrong flag should be reported at once.
    from decode_worker.build import build
    from worker.main import main

    sys.exit(main(WorkerRole.DECODE, build, config, start))
