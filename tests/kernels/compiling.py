"""The parts shared by the tests that compile kernels for Hopper.

That needs no GPU: Triton's wheel carries the assembler. The public wrappers run on CPU tensors with a
recorder in each kernel's place, so that what is compiled is what they launch: arguments, constants, options.
"""

import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
HOPPER_SHARED_BYTES = 227 * 1024  # what one program may use
TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}
TYPES |= {torch.float8_e4m3fn: "fp8e4nv"}
TYPES |= {torch.bool: "i1", torch.uint8: "u8", torch.int8: "i8", torch.int32: "i32", torch.int64: "i64"}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")


class Recorder:
    """Stands where a kernel does and keeps its launches: `kernel[grid](*args, **kwargs)`."""

    def __init__(self, kernel: triton.JITFunction) -> None:
        assert isinstance(kernel, triton.JITFunction), "compiling needs a process without TRITON_INTERPRET"
        self._kernel = kernel
        self._launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(size > 0 for size in grid)
        return lambda *args, **kwargs: self._launches.append((args, kwargs))

    def compile(self) -> list[Any]:
        """Compile each launch and return the results."""
        assert self._launches
        return [self._compile_launch(args, kwargs) for args, kwargs in self._launches]

    def _compile_launch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        options = {name: value for name, value in kwargs.items() if name in OPTIONS}
        values = dict(zip(self._kernel.arg_names, args, strict=False))
        values |= {name: value for name, value in kwargs.items() if name not in OPTIONS}
        signature, constants, hints = {}, {}, {}
        for index, parameter in enumerate(self._kernel.params):
            value = values.pop(parameter.name)
            signature[parameter.name] = triton_type(value, parameter)
            if signature[parameter.name] == "constexpr":
                constants[parameter.name] = value
            elif is_aligned(value, parameter):
                hints[index,] = [["tt.divisibility", 16]]
        assert not values, f"no parameters for {values}"
        source = ASTSource(self._kernel, signature, constants, hints)
        return triton.compile(source, target=HOPPER, options=options)


def triton_type(value: Any, parameter: Any) -> str:
    """Return the type that Triton's launcher would give the argument."""
    if isinstance(value, Tensor):
        return f"*{TYPES[value.dtype]}"
    if parameter.is_constexpr or value is None or (value == 1 and not parameter.do_not_specialize):
        return "constexpr"
    return "i32" if isinstance(value, int) else "fp32"


def is_aligned(value: Any, parameter: Any) -> bool:
    if isinstance(value, int):
        return value % 16 == 0 and not parameter.do_not_specialize
    return isinstance(value, Tensor)


def record(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> Recorder:
    recorder = Recorder(getattr(module, name))
    monkeypatch.setattr(module, name, recorder)
    monkeypatch.setattr(module, "can_launch", lambda kernel, device: True)
    return recorder


def assert_runs_on_hopper(recorder: Recorder) -> None:
    for compiled in recorder.compile():
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared <= HOPPER_SHARED_BYTES


def loops_of_products(compiled: Any, directory: Path) -> list[str]:
    """Return the machine code of each loop that multiplies on tensor cores."""
    binary = directory / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    command = [triton.knobs.nvidia.nvdisasm.path, binary]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines, begins, loops = code.splitlines(), dict[str, int](), []
    for number, line in enumerate(lines):
        if label := re.match(r"(\.L_x_\d+):", line):
            begins[label[1]] = number
        elif (branch := re.search(r"\bBRA `\((\.L_x_\d+)\)", line)) and branch[1] in begins:
            loops.append("\n".join(lines[begins[branch[1]] : number]))
    return [loop for loop in loops if "HGMMA" in loop]
