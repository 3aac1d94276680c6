"""`python -m prefill_worker`: runs prompts in chunks, emits the first tokens, offers the KV."""

from __future__ import annotations

import sys

from worker.config import config_of_process
from worker.identity import WorkerRole
from worker.startup.starting import begin

if __name__ == "__main__":
    config = config_of_process(WorkerRole.PREFILL)
    start = begin(config, WorkerRole.PREFILL)
    # Imported late: torch takes seconds to load, and a wrong flag should be reported at once.
    from prefill_worker.build import build
    from worker.main import main

    sys.exit(main(WorkerRole.PREFILL, build, config, start))
