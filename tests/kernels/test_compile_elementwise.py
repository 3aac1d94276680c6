"""The kernels between a model's products compile for Hopper, and use loads of 16 bytes."""

import pytest
import torch

import kernels.add_rms_norm.kernel as add_rms_norm
import kernels.checksum_blocks.kernel as checksum_blocks
import kernels.copy_blocks.kernel as copy_blocks
import kernels.gated_activation.kernel as gated_activation
import kernels.rope_store_kv.kernel as rope_store_kv
from kernels.rope_store_kv import HeadNorms
from tests.kernels.compiling import Recorder, assert_runs_on_hopper, record


def assert_loads_16_bytes(recorder: Recorder) -> None:
    """The PTX names of a load of four 32-bit words, or of two 64-bit words."""
    for compiled in recorder.compile():
        assert "ld.global.v4.b32" in compiled.asm["ptx"] or "ld.global.v2.b64" in compiled.asm["ptx"]


@pytest.mark.parametrize(
    ("size", "unit_offset", "dtype"),
    [(4096, False, torch.bfloat16), (2304, True, torch.float16), (4096, False, torch.float32)],
)
def test_add_rms_norm_compiles(
    monkeypatch: pytest.MonkeyPatch, size: int, unit_offset: bool, dtype: torch.dtype
) -> None:
    recorder = record(monkeypatch, add_rms_norm, "_add_rms_norm_kernel")
    x, weight = torch.zeros(2, size, dtype=dtype), torch.zeros(size, dtype=dtype)
    add_rms_norm.add_rms_norm(x, x.clone(), weight, 1e-6, unit_offset=unit_offset)
    add_rms_norm.add_rms_norm(x, None, weight, 1e-6, unit_offset=unit_offset)
    assert_runs_on_hopper(recorder)
    assert_loads_16_bytes(recorder)


@pytest.mark.parametrize(
    ("activation", "dtype"),
    [("silu", torch.bfloat16), ("gelu_pytorch_tanh", torch.float16), ("gelu", torch.float32)],
)
def test_gated_activation_compiles(
    monkeypatch: pytest.MonkeyPatch, activation: str, dtype: torch.dtype
) -> None:
    recorder = record(monkeypatch, gated_activation, "_gated_activation_kernel")
    gated_activation.gated_activation(torch.zeros(2, 2 * 14336, dtype=dtype), activation)
    assert_runs_on_hopper(recorder)
    assert_loads_16_bytes(recorder)


@pytest.mark.parametrize(
    ("head_dim", "rotary_dim", "normed", "dtype"),
    [
        (128, 128, False, torch.bfloat16),
        (128, 128, True, torch.float16),
        (256, 256, True, torch.float32),
        (96, 72, True, torch.bfloat16),
    ],
)
def test_rope_store_kv_compiles(
    monkeypatch: pytest.MonkeyPatch, head_dim: int, rotary_dim: int, normed: bool, dtype: torch.dtype
) -> None:
    recorder = record(monkeypatch, rope_store_kv, "_rope_store_kv_kernel")
    qkv = torch.zeros(3, 32 + 8 + 8, head_dim, dtype=dtype)
    query, key, value = qkv[:, :32], qkv[:, 32:40], qkv[:, 40:]
    angles = torch.zeros(3, rotary_dim, dtype=dtype)
    kv_layer = torch.zeros(2, 2, 2, 16, 8, head_dim, dtype=dtype)[:, 1]
    norm = torch.zeros(head_dim, dtype=dtype) if normed else None
    slots, norms = torch.tensor([0, -1, 2]), HeadNorms(norm, norm)
    rope_store_kv.rope_store_kv(query, key, value, angles, angles, kv_layer, slots, norms=norms)
    assert_runs_on_hopper(recorder)
    assert_loads_16_bytes(recorder)


@pytest.mark.parametrize("block", [(2, 16, 8, 128), (2, 1, 6)], ids=["words_of_8", "words_of_4"])
def test_copy_blocks_compiles(monkeypatch: pytest.MonkeyPatch, block: tuple[int, ...]) -> None:
    recorder = record(monkeypatch, copy_blocks, "_copy_blocks_kernel")
    pool, packed = torch.zeros(4, *block).bfloat16(), torch.zeros(2, *block).bfloat16()
    copy_blocks.gather_blocks(pool, torch.tensor([3, 1]), packed)
    copy_blocks.scatter_blocks(packed, pool, torch.tensor([3, 1]))
    assert_runs_on_hopper(recorder)
    if packed[0].nbytes % 16 == 0:
        assert_loads_16_bytes(recorder)


def test_checksum_blocks_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record(monkeypatch, checksum_blocks, "_checksum_blocks_kernel")
    checksum_blocks.checksum_blocks(torch.zeros(4, 2, 16, 8, 128).bfloat16(), torch.tensor([3, 1]))
    assert_runs_on_hopper(recorder)
    assert_loads_16_bytes(recorder)
