"""`int8_linear` compiles for Hopper, for decodes and for prompts, whose products run on its tensor cores."""

import pytest
import torch

import kernels.int8_linear.kernel as int8_linear
from tests.kernels.compiling import HOPPER_SHARED_BYTES, record

NUM_SMS = 132


@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "dtype"),
    [
        (1, 4096, 4096, torch.bfloat16),
        (64, 28672, 4096, torch.float16),
        (200, 1024, 4096, torch.bfloat16),
        (1024, 1000, 2072, torch.float16),
        (16, 100, 80, torch.float32),
    ],
    ids=str,
)
def test_int8_linear_compiles(
    monkeypatch: pytest.MonkeyPatch, rows: int, outputs: int, inputs: int, dtype: torch.dtype
) -> None:
    recorder = record(monkeypatch, int8_linear, "_int8_linear_kernel")
    monkeypatch.setattr(int8_linear, "num_sms", lambda device: NUM_SMS)
    x, scale = torch.empty(rows, inputs, dtype=dtype), torch.empty(outputs, dtype=dtype)
    int8_linear.int8_linear(x, torch.empty(outputs, inputs, dtype=torch.int8), scale, scale)
    for compiled in recorder.compile():
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared <= HOPPER_SHARED_BYTES
        # The instruction whose left operand may come from registers.
        assert ("wgmma.mma_async" in compiled.asm["ptx"]) == (dtype != torch.float32)
