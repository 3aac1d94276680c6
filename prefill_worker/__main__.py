"""`python -m prefill_worker`: runs prompts in chunks, emits the first tokens, offers the KV."""

from __future__ import annotations

import sys

from worker.config import config_of_process
from worker.identity import Role
from worker.startup.starting import begin

if __name__ == "__main__":
    config = config_of_process(Role.PREFILL)
    start = begin(config, Role.PREFILL)
    # Only now: torch takes seconds, and a wrong flag is to be told of at once.
    from prefill_worker.build import build
    from worker.main import main

    sys.exit(main(Role.PREFILL, build, config, start))
