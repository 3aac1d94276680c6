"""Static batching with a few lines of transformers: the next batch starts when the whole one is over.

    python -m benchmarks.fleets.plain_transformers --model demo_model --batch 8 <requests.json

Reads [{"prompt": [ids], "output_tokens": n}, ...] from stdin and writes {"ends_s": [...]}: when each
request's batch was over, in seconds from the start of the first. Prompts are padded on the left,
end-of-sequence is ignored, and a batch generates until its longest output is done, as `generate` does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers


def ends(model: Any, requests: Sequence[dict[str, Any]], batch_size: int) -> Iterator[float]:
    """Yield when each request was over."""
    began = time.perf_counter()
    for first in range(0, len(requests), batch_size):
        batch = requests[first : first + batch_size]
        _generate(
            model,
            [request["prompt"] for request in batch],
            max(request["output_tokens"] for request in batch),
        )
        yield from [time.perf_counter() - began] * len(batch)


def _generate(model: Any, prompts: Sequence[list[int]], num_tokens: int) -> None:
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    with torch.inference_mode():
        found = model.generate(
            ids, attention_mask=mask, do_sample=False, min_new_tokens=num_tokens, max_new_tokens=num_tokens
        )
    assert found.shape[1] == longest + num_tokens, "every row generates to the end"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    requests = json.load(sys.stdin)
    _generate(model, [requests[0]["prompt"]], 2)  # the first call is slower than any after it
    json.dump({"ends_s": list(ends(model, requests, args.batch))}, sys.stdout)


if __name__ == "__main__":
    main()
