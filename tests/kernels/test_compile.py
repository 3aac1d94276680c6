"""Every kernel compiles for Hopper, which needs no GPU: Triton's wheel carries the assembler.

The public wrappers run on CPU tensors with a recorder in each kernel's place, so that what is compiled is
what they launch: arguments, constants and options.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import kernels.chunked_prefill.kernel as chunked_prefill
import kernels.paged_decode.kernel as paged_decode
import kernels.store_kv.kernel as store_kv
from tests.kernels.cases import FEATURES, features, make_case

HOPPER = GPUTarget("cuda", 90, 32)
HOPPER_SHARED_BYTES = 227 * 1024  # what one program may use
TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}
TYPES |= {torch.int32: "i32", torch.int64: "i64"}
OPTIONS = ("num_warps", "num_stages")


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
        """What Triton makes of each launch."""
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
    """As Triton's launcher would type the argument."""
    if isinstance(value, Tensor):
        return f"*{TYPES[value.dtype]}"
    if parameter.is_constexpr or value is None or (value == 1 and not parameter.do_not_specialize):
        return "constexpr"
    return "i32" if isinstance(value, int) else "fp32"


def is_aligned(value: Any, parameter: Any) -> bool:
    if isinstance(value, int):
        return value % 16 == 0 and not parameter.do_not_specialize
    return isinstance(value, Tensor)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing that was compiled before counts."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def record(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> Recorder:
    recorder = Recorder(getattr(module, name))
    monkeypatch.setattr(module, name, recorder)
    monkeypatch.setattr(module, "can_launch", lambda kernel, device: True)
    return recorder


def assert_runs_on_hopper(recorder: Recorder) -> None:
    for compiled in recorder.compile():
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared <= HOPPER_SHARED_BYTES


# Each feature alone and all together in the dtype most models come in, all together in the others, and the
# widest heads, whose tiles are the largest.
ATTENTION = [
    *((torch.bfloat16, 128, feature) for feature in FEATURES),
    (torch.float16, 128, "all"),
    (torch.float32, 128, "plain"),
    (torch.bfloat16, 256, "all"),
    (torch.float32, 256, "all"),
    (torch.bfloat16, 80, "all"),
]


@pytest.mark.parametrize(("dtype", "head_dim", "feature"), ATTENTION, ids=str)
@pytest.mark.parametrize("num_splits", [1, 4])
def test_paged_decode_compiles(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int, feature: str, num_splits: int
) -> None:
    decode = record(monkeypatch, paged_decode, "_paged_decode_kernel")
    combine = record(monkeypatch, paged_decode, "_combine_kernel")
    case = make_case([600, 5], head_dim=head_dim, dtype=dtype)
    query, arguments = case.query(2, 8), features(feature, 8)
    paged_decode.paged_decode(query, *case.paged(), num_splits=num_splits, **arguments)
    assert_runs_on_hopper(decode)
    if num_splits > 1:
        assert_runs_on_hopper(combine)


@pytest.mark.parametrize(("dtype", "head_dim", "feature"), ATTENTION, ids=str)
def test_chunked_prefill_compiles(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int, feature: str
) -> None:
    prefill = record(monkeypatch, chunked_prefill, "_chunked_prefill_kernel")
    case = make_case([60, 5], head_dim=head_dim, dtype=dtype)
    query, arguments = case.query(41, 8), features(feature, 8)
    cu_seqlens_q = torch.tensor([0, 40, 41], dtype=torch.int32)
    chunked_prefill.chunked_prefill(query, *case.paged(), cu_seqlens_q, **arguments)
    assert_runs_on_hopper(prefill)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("head_dim", [80, 128])
def test_store_kv_compiles(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int) -> None:
    store = record(monkeypatch, store_kv, "_store_kv_kernel")
    case = make_case([60], head_dim=head_dim, dtype=dtype)
    key = case.query(3, 2)
    store_kv.store_kv(key, key, case.kv_layer, torch.tensor([0, -1, 2]))
    assert_runs_on_hopper(store)
