"""Every kernel compiles for Hopper."""

from pathlib import Path

import pytest
import torch

import kernels.chunked_prefill.kernel as chunked_prefill
import kernels.paged_decode.kernel as paged_decode
import kernels.span_sums.kernel as span_sums
import kernels.store_kv.kernel as store_kv
from tests.kernels.cases import FEATURES, features, make_case
from tests.kernels.compiling import Recorder, assert_runs_on_hopper, loops_of_products, record

# Each feature alone and all together in the dtype most models come in, all together in the others, and the
# widest heads, whose tiles are the largest.
ATTENTION = [
    *((torch.bfloat16, 128, feature) for feature in FEATURES),
    (torch.float16, 128, "all"),
    (torch.float32, 128, "plain"),
    (torch.bfloat16, 256, "all"),
    pytest.param(torch.float32, 256, "all", marks=pytest.mark.long),
    (torch.bfloat16, 80, "all"),
]
ATTENTION_IN_SPANS = [
    (torch.bfloat16, 128, "plain"),
    (torch.bfloat16, 128, "window"),
    pytest.param(torch.float32, 256, "all", marks=pytest.mark.long),
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
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: torch.dtype, head_dim: int, feature: str
) -> None:
    """Where tiles of 16 bits fit, three groups of copies are in flight while one is multiplied."""
    prefill = record(monkeypatch, chunked_prefill, "_chunked_prefill_kernel")
    case = make_case([60, 5], head_dim=head_dim, dtype=dtype)
    query, arguments = case.query(41, 8), features(feature, 8)
    cu_seqlens_q = torch.tensor([0, 40, 41], dtype=torch.int32)
    chunked_prefill.chunked_prefill(query, *case.paged(), cu_seqlens_q, **arguments)
    assert_runs_on_hopper(prefill)
    if dtype.itemsize == 2 and head_dim <= 128:
        (compiled,) = prefill.compile()
        loops = loops_of_products(compiled, tmp_path)
        assert len(loops) == (3 if arguments["softmax"].sliding_window else 2)
        for loop in loops:
            assert "DEPBAR.LE SB0, 0x3" in loop
            assert not {"STL", "LDL"} & set(loop.split())  # nothing spills there


@pytest.mark.parametrize(("dtype", "head_dim", "feature"), ATTENTION_IN_SPANS, ids=str)
def test_chunked_prefill_in_spans_compiles(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int, feature: str
) -> None:
    """And chunks have the same binary as decodes do: what else would make their bits the same?"""
    prefill = record(monkeypatch, chunked_prefill, "_chunked_prefill_kernel")
    add_spans = Recorder(span_sums._add_spans_kernel)
    monkeypatch.setattr(span_sums, "_add_spans_kernel", add_spans)
    case = make_case([600, 5], head_dim=head_dim, dtype=dtype)
    arguments = {**features(feature, 8), "span": 64, "num_splits": 4}
    for ends in ([0, 1, 2], [0, 40, 41]):
        cu_seqlens_q = torch.tensor(ends, dtype=torch.int32)
        query = case.query(ends[-1], 8)
        chunked_prefill.chunked_prefill(query, *case.paged(), cu_seqlens_q, **arguments)
    # A token alone may come with a stride that says nothing.
    alone = query[:1].as_strided((1, 8, head_dim), (head_dim + 1, head_dim, 1))
    kv_layer, tables, lengths = case.paged()
    chunked_prefill.chunked_prefill(
        alone, kv_layer, tables[:1], lengths[:1], torch.tensor([0, 1], dtype=torch.int32), **arguments
    )
    assert_runs_on_hopper(prefill)
    assert_runs_on_hopper(add_spans)
    decodes, *others = prefill.compile()
    assert all(other.asm["cubin"] == decodes.asm["cubin"] for other in others)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("head_dim", [80, 128])
def test_store_kv_compiles(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int) -> None:
    store = record(monkeypatch, store_kv, "_store_kv_kernel")
    case = make_case([60], head_dim=head_dim, dtype=dtype)
    key = case.query(3, 2)
    store_kv.store_kv(key, key, case.kv_layer, torch.tensor([0, -1, 2]))
    assert_runs_on_hopper(store)
