"""The command that starts a worker: parse the flags, report the start, run."""

from __future__ import annotations

import os
import sys
from typing import Never

from services.process.log import configure_logging
from worker.config import parse_config
from worker.errors import EXIT_CONFIG
from worker.role import WorkerRole
from worker.startup.starting import Start


def run(role: WorkerRole) -> Never:
    """Run this process as a worker until it is drained; exit with the code that says how it ended."""
    try:
        config = parse_config(sys.argv[1:], role.value, os.getpid())
    except ValueError as error:
        print(error, file=sys.stderr)  # noqa: T201 - one sentence for a person, instead of a traceback
        sys.exit(EXIT_CONFIG)
    configure_logging(config.service.log_level, config.service.log_format, worker=config.worker_id)
    start = Start(f"{role.value}_worker", config.worker_id)
    # Imported late: torch takes seconds to load, and a wrong flag should be reported at once.
    from worker.main import main  # noqa: PLC0415

    sys.exit(main(role, config, start))
