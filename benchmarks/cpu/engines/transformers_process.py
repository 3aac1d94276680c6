"""Stock transformers in a process of its own: `generate` on one batch, with its own KV cache, greedily."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from benchmarks.cpu.engines.serving import Clock, Play, Prompts, serve


class _Times(BaseStreamer):
    """Notes each step of `generate`, which first hands over the prompts, and keeps the first tokens."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._has_prompts = False
        self.first_tokens: list[int] = []

    def put(self, value: Tensor) -> None:
        if not self._has_prompts:
            self._has_prompts = True
            return
        self.first_tokens = self.first_tokens or value.tolist()
        self._clock.step()

    def end(self) -> None:
        """Do nothing: every step was noted."""


def _load(model_dir: Path, dtype: str, threads: int) -> Play:
    torch.set_num_threads(threads)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it has no types
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=getattr(torch, dtype), local_files_only=True
    )
    model.generation_config.eos_token_id = None  # so that every row generates to the end

    def play(prompts: Prompts, output_tokens: int, num_steps: int) -> dict[str, Any]:
        ids = torch.tensor(prompts)
        clock = Clock()
        times = _Times(clock)
        with torch.inference_mode():
            output_ids = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=num_steps + 1 if num_steps else output_tokens,
                streamer=times,
            )
        assert output_ids.shape[1] == ids.shape[1] + len(clock.at), "every row generates to the end"
        return clock.reply(num_steps, times.first_tokens)

    return play


def main(argv: Sequence[str]) -> None:
    model_dir, dtype, threads = argv
    serve(lambda: _load(Path(model_dir), dtype, int(threads)))


if __name__ == "__main__":
    main(sys.argv[1:])
