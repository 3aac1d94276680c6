"""OpenVINO GenAI in a process of its own: its pipeline of continuous batching, which runs in .venv-openvino.

Called with one of

    export MODEL OUT DTYPE             writes OpenVINO's form of a model, by Optimum
    compress EXPORTED OUT WEIGHTS      writes that form with weights int8 or int4, by NNCF
    serve OUT DTYPE KV ROUNDING THREADS KV_TOKENS TOKEN_BUDGET

Weights are compressed as by Optimum's command: int8 has a scale and a zero for each output; int4 has them for
each 128 inputs, and int8 for the embedding and the last layer. KV is `dtype` or `u8`. ROUNDING is `default`,
by which OpenVINO decides whether products round activations to 8 bits, or `exact`, by which they do not. The
prefix cache is off.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cpu.engines.serving import Clock, Play, Prompts, serve

MODEL = "openvino_model.xml"
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
GROUP = 128
"""Inputs that share a scale of 4 bits: what Optimum and NNCF recommend."""
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


def compress(exported: str, out_dir: str, weights: str) -> None:
    """Write an exported model with weights of fewer bits."""
    import nncf  # noqa: PLC0415  (serving does not need it)
    import openvino  # noqa: PLC0415

    shutil.copytree(exported, out_dir, ignore=shutil.ignore_patterns(MODEL, "openvino_model.bin"))
    model = openvino.Core().read_model(Path(exported, MODEL))
    modes = nncf.CompressWeightsMode
    if weights == "int8":
        model = nncf.compress_weights(model, mode=modes.INT8_ASYM)
    else:
        model = nncf.compress_weights(model, mode=modes.INT4_ASYM, ratio=1.0, group_size=GROUP)
    openvino.save_model(model, Path(out_dir, MODEL), compress_to_fp16=False)


def _load(exported: str, dtype: str, kv: str, rounding: str, *numbers: int) -> Play:
    threads, kv_tokens, token_budget = numbers
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
        "KV_CACHE_PRECISION": "u8" if kv == "u8" else precision,
        "INFERENCE_NUM_THREADS": threads,
    }
    if rounding == "exact":
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
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
    writers = {"export": export, "compress": compress}
    if argv[0] in writers:
        writers[argv[0]](*argv[1:])
        return
    exported, dtype, kv, rounding, *numbers = argv[1:]
    serve(lambda: _load(exported, dtype, kv, rounding, *map(int, numbers)))


if __name__ == "__main__":
    main(sys.argv[1:])
