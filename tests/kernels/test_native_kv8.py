"""Native ops store 8-bit KV with the reference's bytes, and attend over it as the reference does."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.chunked_prefill import chunked_prefill, chunked_prefill_reference
from kernels.native.ops import MAX_GROUP, attends
from kernels.paged_decode import paged_decode, paged_decode_reference
from kernels.rope_store_kv import rope_store_kv
from kernels.store_kv import store_kv_reference
from tests.kernels.cases import FEATURES, LAYER, features, widen
from tests.kernels.quantised_cases import QuantisedCase, make_quantised_case, poisoned_pool, views_of
from tests.kernels.tensors import same_bits
from tests.kernels.test_quantised_kv import LENGTHS, rows_of_every_kind
from tests.kernels.test_rope_store_kv import NORMS, norms
from tests.kernels.test_rope_store_kv import make_case as make_rope_case

pytestmark = pytest.mark.usefixtures("target")
DTYPES = (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_stores_the_bytes_of_the_numbers_that_it_would_store(norm: str, dtype: torch.dtype) -> None:
    """Also of what is no number, and of numbers whose scale is subnormal or 0."""
    case = make_rope_case(num_q_heads=3, num_kv_heads=3, head_dim=24, slots=[37, -1, 0, 79, 5], dtype=dtype)
    case.value[:] = rows_of_every_kind(dtype)
    arguments = norms(norm, case)
    rotated = rope_store_kv(*case.args(), **arguments)
    slots = case.slot_mapping[case.slot_mapping >= 0]
    numbers = case.pool[slots // 16, LAYER, :, slots % 16]
    pool, wanted = poisoned_pool(5, 16, 3, 24), poisoned_pool(5, 16, 3, 24)
    layer, scales = views_of(pool)
    operands = case.query, case.key, case.value, case.cos, case.sin
    assert same_bits(rope_store_kv(*operands, layer, case.slot_mapping, scales, **arguments), rotated)
    store_kv_reference(numbers[:, 0], numbers[:, 1], wanted.layer(LAYER), slots, wanted.scales(LAYER))
    assert torch.equal(pool.tensor, wanted.tensor)


def assert_equals(got: Tensor, want: Tensor, case: QuantisedCase, query: Tensor) -> None:
    assert got.dtype == query.dtype
    torch.testing.assert_close(widen(got), want, atol=case.tolerance(query.dtype), rtol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("feature", FEATURES)
def test_decodes_attend(feature: str, dtype: torch.dtype) -> None:
    case = make_quantised_case([*LENGTHS, 0])
    query, arguments = case.query(len(LENGTHS) + 1, 4, dtype), {**case.paged(), **features(feature, 4)}
    assert attends(query, case.kv_layer)
    assert_equals(
        paged_decode(query, **arguments), paged_decode_reference(widen(query), **arguments), case, query
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("feature", FEATURES)
def test_chunks_attend(feature: str, dtype: torch.dtype) -> None:
    case = make_quantised_case([40, 1, 270])
    starts = torch.tensor([0, 37, 38, 170], dtype=torch.int32)
    query, arguments = case.query(170, 4, dtype), {**case.paged(), **features(feature, 4)}
    got = chunked_prefill(query, cu_seqlens_q=starts, **arguments)
    want = chunked_prefill_reference(widen(query), cu_seqlens_q=starts, **arguments)
    assert_equals(got, want, case, query)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 24, 128])
@pytest.mark.parametrize(("head_dim", "group"), [(8, 1), (80, 3), (128, MAX_GROUP), (256, 2), (64, 4)])
def test_attends_in_every_size(head_dim: int, group: int, block_size: int, dtype: torch.dtype) -> None:
    case = make_quantised_case([1, 33, 190], block_size=block_size, head_dim=head_dim)
    query = case.query(3, 2 * group, dtype)
    arguments: dict[str, Any] = {**case.paged(), **features("all", 2 * group)}
    assert_equals(
        paged_decode(query, **arguments), paged_decode_reference(widen(query), **arguments), case, query
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_token_has_its_bits_in_any_chunk(dtype: torch.dtype) -> None:
    case = make_quantised_case([200])
    query, arguments = case.query(200, 4, dtype), {**case.paged(), **features("plain", 4)}
    whole = chunked_prefill(query, cu_seqlens_q=torch.tensor([0, 200], dtype=torch.int32), **arguments)
    for length in (7, 64, 130):
        part = {**arguments, "context_lens": torch.tensor([length], dtype=torch.int32)}
        chunk = query[length - 5 : length]
        got = chunked_prefill(chunk, cu_seqlens_q=torch.tensor([0, 5], dtype=torch.int32), **part)
        assert same_bits(got, whole[length - 5 : length])


def test_a_broken_row_shows_only_where_it_is_seen() -> None:
    case = make_quantised_case([100])
    case.kv_scales[case.block_tables[0, 50 // 16], :, 0, 50 % 16] = torch.inf
    case.kv_layer[case.block_tables[0, 50 // 16], :, 50 % 16, 0] = 0
    query, arguments = case.query(100, 4, torch.float32), {**case.paged(), **features("plain", 4)}
    got = chunked_prefill(query, cu_seqlens_q=torch.tensor([0, 100], dtype=torch.int32), **arguments)
    broken = got.isnan().any(-1)
    assert broken[50:, :2].all()
    assert not broken[:50].any()
    assert not broken[:, 2:].any()
