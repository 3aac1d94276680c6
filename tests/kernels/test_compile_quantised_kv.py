"""The kernels that read and write 8-bit KV compile for Hopper."""

import pytest
import torch

import kernels.chunked_prefill.kernel as chunked_prefill
import kernels.paged_decode.kernel as paged_decode
import kernels.rope_store_kv.kernel as rope_store_kv
import kernels.store_kv.kernel as store_kv
from tests.kernels.cases import features
from tests.kernels.compiling import assert_runs_on_hopper, record
from tests.kernels.quantised_cases import STORED, make_quantised_case

WAYS = [
    (torch.bfloat16, 128, "plain", torch.int8),
    (torch.bfloat16, 128, "all", torch.int8),
    (torch.float16, 64, "plain", torch.int8),
    pytest.param(torch.float32, 128, "all", torch.int8, marks=pytest.mark.long),
    (torch.bfloat16, 256, "all", torch.int8),
    (torch.bfloat16, 128, "all", torch.float8_e4m3fn),
    (torch.float16, 64, "plain", torch.float8_e4m3fn),
]


@pytest.mark.parametrize(("dtype", "head_dim", "feature", "stored"), WAYS, ids=str)
def test_paged_decode_compiles(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int, feature: str, stored: torch.dtype
) -> None:
    recorder = record(monkeypatch, paged_decode, "_paged_decode_kernel")
    case = make_quantised_case([600, 5], head_dim=head_dim, stored=stored)
    query, arguments = case.query(2, 8, dtype), {**case.paged(), **features(feature, 8)}
    paged_decode.paged_decode(query, num_splits=1, **arguments)
    assert_runs_on_hopper(recorder)


@pytest.mark.parametrize(("dtype", "head_dim", "feature", "stored"), WAYS, ids=str)
def test_chunked_prefill_compiles(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int, feature: str, stored: torch.dtype
) -> None:
    recorder = record(monkeypatch, chunked_prefill, "_chunked_prefill_kernel")
    case = make_quantised_case([60, 5], head_dim=head_dim, stored=stored)
    query, arguments = case.query(41, 8, dtype), {**case.paged(), **features(feature, 8)}
    cu_seqlens_q = torch.tensor([0, 40, 41], dtype=torch.int32)
    chunked_prefill.chunked_prefill(query, cu_seqlens_q=cu_seqlens_q, **arguments)
    assert_runs_on_hopper(recorder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("head_dim", "stored"), [(80, torch.int8), *((128, entry) for entry in STORED)], ids=str
)
def test_store_kv_compiles(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int, stored: torch.dtype
) -> None:
    recorder = record(monkeypatch, store_kv, "_store_kv_kernel")
    case = make_quantised_case([60], head_dim=head_dim, stored=stored)
    key = case.query(3, 2, dtype)
    store_kv.store_kv(key, key, case.kv_layer, torch.tensor([0, -1, 2]), case.kv_scales)
    assert_runs_on_hopper(recorder)


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(128, 128), (96, 72)])
def test_rope_store_kv_compiles(
    monkeypatch: pytest.MonkeyPatch, head_dim: int, rotary_dim: int, stored: torch.dtype
) -> None:
    recorder = record(monkeypatch, rope_store_kv, "_rope_store_kv_kernel")
    case = make_quantised_case([60], head_dim=head_dim, stored=stored)
    query, angles = case.query(3, 8, torch.bfloat16), torch.zeros(3, rotary_dim)
    key, slots = query[:, :2], torch.tensor([0, -1, 2])
    rope_store_kv.rope_store_kv(query, key, key, angles, angles, case.kv_layer, slots, case.kv_scales)
    assert_runs_on_hopper(recorder)
