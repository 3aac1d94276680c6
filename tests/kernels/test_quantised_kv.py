"""8-bit KV: what is stored, and what attention makes of it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.chunked_prefill import chunked_prefill, chunked_prefill_reference
from kernels.launch import KV_LIMITS
from kernels.paged_attention.arguments import Softmax
from kernels.paged_decode import paged_decode, paged_decode_reference
from kernels.store_kv import quantise, store_kv, store_kv_reference
from tests.kernels.cases import FEATURES, LAYER, PADDING, features, widen
from tests.kernels.interpreter import Interpreter
from tests.kernels.quantised_cases import (
    STORED,
    QuantisedCase,
    make_quantised_case,
    multiplied_out,
    poisoned_pool,
    step_at,
    views_of,
)
from tests.kernels.tensors import same_bits

FLOATS = [torch.float16, torch.bfloat16, torch.float32]
SLOTS = [3, -1, 64, 15, 79]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows_of_every_kind(dtype: torch.dtype) -> Tensor:
    """[5, 3, 24]: random ones, and zeros, a NaN, an infinity, and numbers whose scale is subnormal or 0."""
    rows = randn(5, 3, 24)
    rows[0, 0] = 0.0
    rows[2, 0, 7] = torch.nan
    rows[2, 1, 7] = -torch.inf
    if dtype != torch.bfloat16:  # of which the interpreter makes other numbers, when they are subnormal
        rows[3, 0] *= 1e-40
        rows[3, 1] *= 1e-44
    return rows.to(dtype)


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_a_number_is_off_by_half_a_step_at_most(stored: torch.dtype) -> None:
    rows = randn(50, 2, 64) * torch.logspace(-6, 6, 50)[:, None, None]
    values, scales = quantise(rows, stored)
    limit = KV_LIMITS[stored]
    assert (values.float().abs().amax(-1) == limit).all()
    # Half a step, and the rounding of the division and of the product.
    steps = step_at(rows / scales[..., None], stored)
    bound = scales[..., None] * (0.5 * steps + limit * 2 * torch.finfo(torch.float32).eps)
    assert ((multiplied_out(values, scales) - rows).abs() <= bound).all()


@pytest.mark.parametrize(("stored", "atol"), [(torch.int8, 1e-42), (torch.float8_e4m3fn, 1e-41)], ids=str)
def test_zeros_stay_zeros_and_what_is_no_number_shows(stored: torch.dtype, atol: float) -> None:
    rows = rows_of_every_kind(torch.float32)
    got = multiplied_out(*quantise(rows, stored))
    assert (got[0, 0] == 0).all()
    assert got[2, :2].isnan().all()
    assert got[2, 2].isfinite().all()
    torch.testing.assert_close(got[3, :2], rows[3, :2], rtol=0, atol=atol)


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_a_row_s_bytes_do_not_depend_on_its_company(stored: torch.dtype) -> None:
    rows = randn(9, 3, 40)
    together = quantise(rows, stored)
    for token in range(9):
        alone = quantise(rows[token : token + 1], stored)
        assert all(same_bits(answer[0], all_[token]) for answer, all_ in zip(alone, together, strict=True))


def behind(view: Tensor) -> Tensor:
    """All bytes of the pool that a view is of."""
    size = view.untyped_storage().nbytes() // view.element_size()
    return view.as_strided((size,), (1,), 0).view(torch.uint8)


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("block_size", [16, 5])
def test_kernel_stores_the_reference_s_bytes_and_no_others(
    interpreter: Interpreter, dtype: torch.dtype, block_size: int, stored: torch.dtype
) -> None:
    key, value = rows_of_every_kind(dtype), rows_of_every_kind(dtype).flip(0)
    pool, slots = poisoned_pool(80 // block_size, block_size, 3, 24, stored=stored), torch.tensor(SLOTS)
    layer, scales = views_of(pool)
    _, after = interpreter.run_and_return_args("store_kv", key, value, layer, slots, scales)
    values_only, scales_only = pool.tensor.flatten().clone(), pool.tensor.flatten().clone()
    store_kv_reference(key, value, layer, slots, scales)
    values_only.as_strided(layer.shape, layer.stride(), layer.storage_offset()).copy_(layer.view(torch.uint8))
    floats = scales_only.view(torch.float32)
    floats.as_strided(scales.shape, scales.stride(), scales.storage_offset()).copy_(scales)
    assert torch.equal(behind(after[2]), values_only)
    assert torch.equal(behind(after[4]), scales_only)


def test_wrapper_stores_without_a_gpu() -> None:
    key, value, slots = randn(5, 3, 24), randn(5, 3, 24, seed=1), torch.tensor(SLOTS)
    pools = [poisoned_pool(5, 16, 3, 24) for _ in range(2)]
    for pool, store in zip(pools, (store_kv, store_kv_reference), strict=True):
        store(key, value, pool.layer(LAYER), slots, pool.scales(LAYER))
    assert torch.equal(pools[0].tensor, pools[1].tensor)
    layer, scales = views_of(pools[0])
    read = multiplied_out(layer[4, 1, 15], scales[4, 1, :, 15])
    torch.testing.assert_close(read, value[4], rtol=0, atol=0.02)


def assert_equals(got: Tensor, want: Tensor, case: QuantisedCase, query: Tensor) -> None:
    assert got.dtype == query.dtype
    torch.testing.assert_close(widen(got), want, atol=case.tolerance(query.dtype), rtol=0)


# All in the dtype whose tolerance is the narrowest, all at once in the others.
WAYS = [
    *((torch.float32, name, torch.int8) for name in FEATURES),
    *((dtype, "all", torch.int8) for dtype in (torch.float16, torch.bfloat16)),
    *((dtype, "all", torch.float8_e4m3fn) for dtype in FLOATS),
]
LENGTHS = [1, 16, 17, 63, 130]


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize(("dtype", "feature", "stored"), WAYS, ids=str)
def test_decode_kernel_equals_reference(
    interpreter: Interpreter, dtype: torch.dtype, feature: str, stored: torch.dtype, num_splits: int
) -> None:
    case = make_quantised_case(LENGTHS, stored=stored)
    query, arguments = case.query(len(LENGTHS), 4, dtype), {**case.paged(), **features(feature, 4)}
    got = interpreter.run("paged_decode", query, num_splits=num_splits, **arguments)
    assert_equals(got, paged_decode_reference(widen(query), **arguments), case, query)


@pytest.mark.parametrize(("dtype", "feature", "stored"), WAYS, ids=str)
def test_prefill_kernel_equals_reference(
    interpreter: Interpreter, dtype: torch.dtype, feature: str, stored: torch.dtype
) -> None:
    case = make_quantised_case([40, 1, 70], stored=stored)
    cu_seqlens = torch.tensor([0, 37, 38, 41], dtype=torch.int32)
    query, arguments = case.query(41, 4, dtype), {**case.paged(), **features(feature, 4)}
    got = interpreter.run("chunked_prefill", query, cu_seqlens_q=cu_seqlens, **arguments)
    assert_equals(
        got, chunked_prefill_reference(widen(query), cu_seqlens_q=cu_seqlens, **arguments), case, query
    )


@pytest.mark.parametrize(("block_size", "head_dim"), [(1, 24), (24, 80), (128, 8)])
def test_kernel_serves_odd_sizes(interpreter: Interpreter, block_size: int, head_dim: int) -> None:
    case = make_quantised_case([1, 33], block_size=block_size, head_dim=head_dim, num_kv_heads=3)
    query, arguments = case.query(2, 3, torch.float32), {**case.paged(), **features("plain", 3)}
    got = interpreter.run("paged_decode", query, num_splits=2, **arguments)
    assert_equals(got, paged_decode_reference(query, **arguments), case, query)


def test_blocks_behind_the_window_are_never_read(interpreter: Interpreter) -> None:
    case = make_quantised_case([130])
    query, arguments = case.query(1, 4, torch.float32), {**case.paged(), **features("window", 4)}
    want = paged_decode_reference(query, **arguments)
    arguments["block_tables"] = case.block_tables.clone()
    arguments["block_tables"][0, : (130 - 20) // 16] = PADDING
    assert_equals(interpreter.run("paged_decode", query, **arguments), want, case, query)


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_the_reference_reads_what_was_stored(stored: torch.dtype, without_native: None) -> None:
    key, value = randn(20, 2, 16), randn(20, 2, 16, seed=1)
    pool, slots = poisoned_pool(2, 16, 2, 16, stored=stored), torch.arange(20)
    store_kv(key, value, pool.layer(LAYER), slots, pool.scales(LAYER))
    query, tables, lens = randn(1, 4, 16, seed=2), torch.tensor([[0, 1]]).int(), torch.tensor([20]).int()
    got = paged_decode(query, pool.layer(LAYER), tables, lens, Softmax(0.3), pool.scales(LAYER))
    keys, values = (multiplied_out(*quantise(each, stored)) for each in (key, value))
    exact = torch.stack((keys.view(20, 2, 16), values.view(20, 2, 16)), dim=0)
    paged = torch.zeros(2, 2, 16, 2, 16)
    paged[slots // 16, :, slots % 16] = exact.transpose(0, 1)
    # The same products in the same order.
    assert torch.equal(got, paged_decode(query, paged, tables, lens, Softmax(0.3)))


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "no_scales": ({"kv_scales": None}, "kv_layer has dtype torch.int8; accepted: torch.float16"),
    "scales_of_floats": ({"kv_layer": torch.zeros(3, 2, 16, 2, 16)}, "float32; accepted: torch.int8"),
    "scales_shape": ({"kv_scales": torch.zeros(3, 2, 16, 2)}, r"kv_scales has shape .* \[3, 2, 2, 16\]"),
    "scales_dtype": ({"kv_scales": torch.zeros(3, 2, 2, 16).half()}, "kv_scales has dtype torch.float16"),
    "scales_strided": ({"kv_scales": torch.zeros(3, 2, 16, 2).mT}, "kv_scales has stride 2"),
    "scales_device": ({"kv_scales": torch.zeros(3, 2, 2, 16, device="meta")}, "kv_scales is on meta"),
    "query_int": ({"query": torch.zeros(1, 4, 16, dtype=torch.int8)}, "query has dtype torch.int8"),
}


@pytest.mark.parametrize("bad", BAD_ARGUMENTS)
def test_refuses(bad: str) -> None:
    case = make_quantised_case([5])
    changed, message = BAD_ARGUMENTS[bad]
    good: dict[str, Any] = {"query": case.query(1, 4, torch.float32), **case.paged(), "softmax": Softmax(0.3)}
    with pytest.raises(ValueError, match=message):
        paged_decode(**{**good, **changed})


@pytest.mark.gpu
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_compiled_kernel_stores_the_reference_s_bytes(dtype: torch.dtype, stored: torch.dtype) -> None:
    slots = torch.arange(5000).flip(0)
    slots[::7] = -1
    key, value = randn(5000, 8, 128).to(dtype), randn(5000, 8, 128, seed=1).to(dtype)
    want, pool = (poisoned_pool(400, 16, 8, 128, device, stored) for device in ("cpu", "cuda"))
    store_kv_reference(key, value, want.layer(LAYER), slots, want.scales(LAYER))
    store_kv(key.cuda(), value.cuda(), pool.layer(LAYER), slots.cuda(), pool.scales(LAYER))
    assert torch.equal(pool.tensor.cpu(), want.tensor)


GPU_SHAPES = [((32, 8), 128), ((64, 8), 64), ((16, 8), 256), ((71, 1), 80)]


@pytest.mark.gpu
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), GPU_SHAPES)
def test_compiled_kernels_equal_reference(
    heads: tuple[int, int], head_dim: int, dtype: torch.dtype, feature: str, stored: torch.dtype
) -> None:
    lengths = [1, 63, 64, 1000, 4097, 0]
    case = make_quantised_case(
        lengths, num_kv_heads=heads[1], head_dim=head_dim, device="cuda", stored=stored
    )
    arguments = {**case.paged(), **features(feature, heads[0], "cuda")}
    query = case.query(len(lengths), heads[0], dtype)
    want = paged_decode_reference(widen(query), **arguments)
    for num_splits in (None, 1, 7):
        got = paged_decode(query, num_splits=num_splits, **arguments)
        assert_equals(got, want, case, query)
    cu_seqlens = torch.tensor([0, 1, 31, 31, 331, 800, 800], dtype=torch.int32, device="cuda")
    query = case.query(800, heads[0], dtype)
    got = chunked_prefill(query, cu_seqlens_q=cu_seqlens, **arguments)
    assert_equals(
        got, chunked_prefill_reference(widen(query), cu_seqlens_q=cu_seqlens, **arguments), case, query
    )
