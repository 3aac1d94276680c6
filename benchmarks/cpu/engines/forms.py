"""A model in the forms of other engines, which are made once and kept in `.baton/peers`."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from benchmarks.cpu.engines.process_engine import CHECKOUT, NotMeasured

OPENVINO = CHECKOUT / ".venv-openvino"
"""The environment of OpenVINO GenAI, and of what writes models for it and for llama.cpp."""
MADE = CHECKOUT / ".baton" / "peers"


async def openvino_model(model: Path, dtype: str, weights: str) -> Path:
    """Return the folder of a model in OpenVINO's form, with weights `float`, `int8` or `int4`."""
    if weights == "float":
        return await _made(model, dtype, "openvino_process", "export", _path(model), "{}", dtype)
    exported = await openvino_model(model, dtype, "float")
    name = f"{dtype}-{weights}"
    return await _made(model, name, "openvino_process", "compress", str(exported), "{}", weights)


async def gguf_file(model: Path, form: str) -> Path:
    """Return the GGUF file of a model, with weights of the form `Q8_0` or `Q4_0`."""
    name = f"{form}.gguf"
    return await _made(model, name, "gguf_process", _path(model), "{}", form)


async def _made(model: Path, form: str, module: str, *arguments: str) -> Path:
    """Return what a module makes of a model, at the path that takes the place of `{}` in its arguments.

    Raises NotMeasured without its environment, or if it does not take the model.
    """
    target = MADE / f"{_name_of(model)}-{form}"
    if target.exists():
        return target
    if not (OPENVINO / ".ready").exists():
        raise NotMeasured(
            "OpenVINO GenAI and llama.cpp need `make .venv-openvino/.ready`, which sets up an environment"
        )
    print(f"Writing {target.relative_to(CHECKOUT)}", file=sys.stderr)
    MADE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MADE) as folder:
        command = (str(OPENVINO / "bin" / "python"), "-m", f"benchmarks.cpu.engines.{module}")
        filled = [argument.format(f"{folder}/made") for argument in arguments]
        process = await asyncio.create_subprocess_exec(
            *command, *filled, cwd=CHECKOUT, stdout=DEVNULL, stderr=PIPE
        )
        _, errors = await process.communicate()
        if process.returncode:
            output = errors.decode(errors="replace").strip()[-500:]
            raise NotMeasured(f"{model.name} has no form {form}; its writer failed: {output}")
        shutil.move(f"{folder}/made", target)
    return target


def _path(model: Path) -> str:
    return str(model.resolve())


def _name_of(model: Path) -> str:
    """Return a name that changes with the files of the model."""
    digest = hashlib.sha256(_path(model).encode())
    for path in sorted(model.iterdir()):
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"{model.resolve().name}-{digest.hexdigest()[:12]}"
