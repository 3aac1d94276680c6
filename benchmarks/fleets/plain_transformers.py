"""Static batching with a few lines of transformers: the next batch starts when the whole one is over.

Prompts are padded on the left, end-of-sequence is ignored, and a batch generates until its longest output is
done, as `generate` does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

Asked = tuple[list[int], int]
"""A prompt, and how many tokens to generate."""


def ends_s(model_dir: Path, requests: Sequence[Asked], batch_size: int) -> list[float]:
    """Return when each request's batch was over, in seconds from the start of the first; on one thread."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it has no types
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    _generate(model, [(requests[0][0], 2)])  # the first call is slower than any after it
    began, ends = time.perf_counter(), []
    for first in range(0, len(requests), batch_size):
        batch = requests[first : first + batch_size]
        _generate(model, batch)
        ends += [time.perf_counter() - began] * len(batch)
    return ends


def _generate(model: Any, batch: Sequence[Asked]) -> None:
    longest = max(len(prompt) for prompt, _ in batch)
    num_tokens = max(asked for _, asked in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, _) in enumerate(batch):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    with torch.inference_mode():
        found = model.generate(
            ids, attention_mask=mask, do_sample=False, min_new_tokens=num_tokens, max_new_tokens=num_tokens
        )
    assert found.shape[1] == longest + num_tokens, "every row generates to the end"
