"""The loop of an engine's process: a line of JSON comes for each load, and another one is returned.

Engines of other environments run it too, so it imports nothing of the project's dependencies.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

Prompts = Sequence[Sequence[int]]


class Clock:
    """Notes when tokens came: a time for each step since the load began."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.at: list[float] = []

    def step(self) -> None:
        self.at.append(time.perf_counter())

    def reply(self, num_steps: int, first_tokens: Sequence[int]) -> dict[str, Any]:
        """Return the end of the load, or the mean of its last steps, of which there are `num_steps`."""
        if num_steps:
            return {
                "total_s": 0.0,
                "step_s": (self.at[-1] - self.at[-1 - num_steps]) / num_steps,
                "first_tokens": list(first_tokens),
            }
        return {"total_s": self.at[-1] - self.began, "step_s": 0.0, "first_tokens": list(first_tokens)}


Play = Callable[[Prompts, int, int], dict[str, Any]]
"""Computes prompts up to a number of output tokens, or until a number of steps were timed."""


def serve(load: Callable[[], Play]) -> None:
    """Load an engine and play what comes until the input ends. Only replies are written to stdout."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    play = load()
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        reply = play(request["prompts"], request["output_tokens"], request["num_steps"])
        print(json.dumps(reply), file=replies, flush=True)
