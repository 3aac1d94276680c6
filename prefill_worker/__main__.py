"""`python -m prefill_worker`: runs prompts in chunks, emits the first tokens, offers the KV."""

from __future__ import annotations

from worker.role import WorkerRole
from worker.startup.command import run

if __name__ == "__main__":
    run(WorkerRole.PREFILL)
