"""Stock transformers in a process of its own: `generate` on one batch, with its own KV cache, greedily.

Called with `MODEL DTYPE THREADS [QUANTISATION]`. MODEL is the folder of a checkpoint, or a GGUF file, which
transformers expands. With QUANTISATION, Baton rounds the weights of that dtype, and what they stand for is
computed in float32. For a GGUF file it runs in .venv-openvino, which has none of Baton's dependencies.
"""

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


def _load(path: Path, dtype: str, threads: int, quantisation: str | None = None) -> Play:
    torch.set_num_threads(threads)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it has no types
    folder, file = (path, None) if path.is_dir() else (path.parent, path.name)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, dtype=getattr(torch, dtype), local_files_only=True
    )
    if quantisation is not None:
        model = rounded(model, quantisation)
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


def rounded(model: Any, quantisation: str) -> Any:
    """Return a model of stock layers in float32, with the weights that Baton's stand for."""
    # An environment that only reads GGUF files has not what these import.
    from engine.model.quantised.quantisation import Quantisation  # noqa: PLC0415
    from engine.model.quantised.rounding import quantise_ends, quantise_linears  # noqa: PLC0415
    from engine.model.quantised.whole_linears import GroupedLinear, WholeLinear  # noqa: PLC0415

    setting = Quantisation(quantisation)
    cpu = torch.device("cpu")
    quantise_linears(model, setting.weights, cpu)
    if setting.logits:
        quantise_ends(model, cpu)
    model = model.float()
    for name, layer in list(model.named_modules()):
        if not isinstance(layer, WholeLinear):
            continue
        stock = torch.nn.Linear(layer.inputs, layer.outputs, bias=False)
        if isinstance(layer, GroupedLinear):
            weight = layer.expanded(slice(None))
        else:
            weight = layer.weight * layer.scale[:, None]
        stock.weight = torch.nn.Parameter(weight.float(), requires_grad=False)
        model.set_submodule(name, stock)
    return model


def main(argv: Sequence[str]) -> None:
    path, dtype, threads, *quantisation = argv
    serve(lambda: _load(Path(path), dtype, int(threads), *quantisation))


if __name__ == "__main__":
    main(sys.argv[1:])
