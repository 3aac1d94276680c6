"""OpenVINO GenAI in a process of its own: its pipeline of continuous batching, which runs in .venv-openvino.

Called with `export MODEL OUT DTYPE`, it writes OpenVINO's form of a model, by Optimum. With `serve OUT DTYPE
THREADS KV_TOKENS TOKEN_BUDGET` it runs it. Weights, products and KV have the same dtype; the prefix cache is
off.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.cpu.engines.serving import Clock, Play, Prompts, serve

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
BLOCK_SIZE = 32
"""The tokens of a KV block of OpenVINO's on a CPU."""


def export(model_dir: str, out_dir: str, dtype: str) -> None:
    """Write a checkpoint in OpenVINO's form, with weights of the dtype."""
    import torch  # noqa: PLC0415  (serving needs neither torch nor Optimum)
    from optimum.exporters.openvino import main_export  # noqa: PLC0415
    from optimum.intel import OVConfig  # noqa: PLC0415

    main_export(
        model_dir,
        output=out_dir,
        task="text-generation-with-past",
        ov_config=OVConfig(dtype="fp32") if dtype == "float32" else None,
        model_loading_kwargs={"torch_dtype": getattr(torch, dtype)},
        local_files_only=True,
    )


def _load(exported: str, dtype: str, threads: int, kv_tokens: int, token_budget: int) -> Play:
    import numpy as np  # noqa: PLC0415  (exporting needs none of these)
    import openvino  # noqa: PLC0415
    import openvino_genai  # noqa: PLC0415

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = token_budget
    scheduler.num_kv_blocks = kv_tokens // BLOCK_SIZE
    scheduler.enable_prefix_caching = False
    precision = PRECISIONS[dtype]
    properties = {
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
        "INFERENCE_NUM_THREADS": threads,
    }
    pipeline = openvino_genai.ContinuousBatchingPipeline(exported, scheduler, "CPU", properties)

    def play(prompts: Prompts, output_tokens: int, num_steps: int) -> dict[str, Any]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = output_tokens, True, False
        inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        clock = Clock()
        handles = [pipeline.add_request(number, ids, config) for number, ids in enumerate(inputs)]
        first: dict[int, int] = {}
        remaining_steps = num_steps
        while pipeline.has_non_finished_requests() and (remaining_steps or not num_steps):
            pipeline.step()
            clock.step()
            remaining_steps -= len(first) == len(handles)
            for number, handle in enumerate(handles):
                if number not in first and handle.can_read():
                    first[number] = next(iter(handle.read().values())).generated_ids[0]
        for handle in handles:
            handle.cancel()
        while pipeline.has_non_finished_requests():
            pipeline.step()
        return clock.reply(num_steps, [first[number] for number in range(len(handles))])

    return play


def main(argv: Sequence[str]) -> None:
    if argv[0] == "export":
        export(*argv[1:])
        return
    exported, dtype, *numbers = argv[1:]
    serve(lambda: _load(exported, dtype, *map(int, numbers)))


if __name__ == "__main__":
    main(sys.argv[1:])
