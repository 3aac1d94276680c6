"""`python -m decode_worker`: fetches KV, runs decode steps, and prefill chunks inside them when told to."""

from __future__ import annotations

from worker.role import WorkerRole
from worker.startup.command import run

if __name__ == "__main__":
    run(WorkerRole.DECODE)
