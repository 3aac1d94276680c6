"""lm-evaluation-harness, unchanged: over HTTP it measures what it measures by transformers.

The tasks are local files in the folder that is the only argument. Prompts are sent as token ids, four in
a request, and as texts. Prints the worst relative difference of a log-likelihood.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

MODEL = os.environ["BATON_MODEL"]
WINDOW = 512
"""Tokens that both backends see at once, so that long texts are cut alike."""
TASKS = ["questions", "pages", "endings"]
TOLERANCE = 1e-5
"""Both compute in float32; sums of products differ in their order."""
OVER_HTTP = {
    "model": "demo_model",
    "base_url": os.environ["BATON_URL"] + "/v1/completions",
    "tokenizer": MODEL,
    "max_length": WINDOW + 2,  # it leaves out one for the token that servers draw, and another in windows
}


def responses(backend: str, arguments: dict[str, Any], batch_size: int, tasks: list[str]) -> dict[str, Any]:
    """Return each task's responses, sample by sample, and its metrics."""
    found = simple_evaluate(
        backend,
        arguments,
        tasks=list(tasks),
        batch_size=batch_size,
        device="cpu",
        task_manager=TaskManager(include_path=sys.argv[1], include_defaults=False),
        bootstrap_iters=0,
    )
    samples = {
        task: [sample["filtered_resps"] for sample in sorted(rows, key=lambda sample: sample["doc_id"])]
        for task, rows in found["samples"].items()
    }
    return {"samples": samples, "metrics": found["results"]}


def worst_difference(ours: Any, theirs: Any) -> float:
    """Return the worst relative difference of numbers. Everything else has to be equal."""
    if isinstance(ours, list | tuple):
        assert len(ours) == len(theirs) > 0
        return max(worst_difference(*pair) for pair in zip(ours, theirs, strict=True))
    if isinstance(ours, float):
        return abs(ours - theirs) / abs(theirs)
    assert ours == theirs, (ours, theirs)
    return 0.0


def check(batch_size: int, tasks: list[str], reference: dict[str, Any], **more: Any) -> None:
    found = responses("local-completions", OVER_HTTP | more, batch_size, tasks)
    for task in tasks:
        ours, theirs = found["samples"][task], reference["samples"][task]
        worst = worst_difference(ours, theirs)
        print(f"{task}, {more}: {len(ours)} samples, worst difference {worst:.1e}")  # noqa: T201
        print(found["metrics"][task])  # noqa: T201
        assert worst < TOLERANCE


if __name__ == "__main__":
    plain = responses("hf", {"pretrained": MODEL, "dtype": "float32", "max_length": WINDOW}, 1, TASKS)
    print(plain["metrics"])  # noqa: T201
    check(4, TASKS, plain)
    check(1, ["questions"], plain, tokenized_requests=False, num_concurrent=4)
