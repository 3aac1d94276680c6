from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.paged_attention.arguments import Softmax
from kernels.paged_decode import paged_decode, paged_decode_reference
from tests.kernels.cases import FEATURES, PADDING, Case, features, make_case, tolerance, widen
from tests.kernels.interpreter import Interpreter

# One token, both sides of a page border (16) and of a tile border (64), and a third tile.
LENGTHS = [1, 16, 17, 63, 130]


def assert_equals_reference(got: Tensor, query: Tensor, case: Case, arguments: dict[str, Any]) -> None:
    want = paged_decode_reference(widen(query), *case.exact(), **arguments)
    assert got.dtype == query.dtype
    torch.testing.assert_close(widen(got), want, atol=tolerance(case), rtol=0)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_kernel_equals_reference(
    interpreter: Interpreter, dtype: torch.dtype, feature: str, num_splits: int
) -> None:
    case = make_case(LENGTHS, dtype=dtype)
    query, arguments = case.query(len(LENGTHS), 4), features(feature, 4)
    got = interpreter.run("paged_decode", query, *case.paged(), num_splits=num_splits, **arguments)
    assert_equals_reference(got, query, case, arguments)


@pytest.mark.parametrize(("num_q_heads", "num_kv_heads"), [(1, 1), (3, 3), (6, 2), (8, 1), (16, 1), (20, 1)])
def test_kernel_serves_every_group_size(
    interpreter: Interpreter, num_q_heads: int, num_kv_heads: int
) -> None:
    case = make_case([17, 70], num_kv_heads=num_kv_heads)
    query, arguments = case.query(2, num_q_heads), features("sinks", num_q_heads)
    for num_splits in (1, 2):
        got = interpreter.run("paged_decode", query, *case.paged(), num_splits=num_splits, **arguments)
        assert_equals_reference(got, query, case, arguments)


@pytest.mark.parametrize("block_size", [1, 8, 24, 32, 128])
@pytest.mark.parametrize("head_dim", [8, 24, 64, 80, 256])
def test_kernel_serves_every_head_and_block_size(
    interpreter: Interpreter, head_dim: int, block_size: int
) -> None:
    case = make_case([1, 33], head_dim=head_dim, block_size=block_size, num_kv_heads=1)
    query, arguments = case.query(2, 2), features("plain", 2)
    for num_splits in (1, 2):
        got = interpreter.run("paged_decode", query, *case.paged(), num_splits=num_splits, **arguments)
        assert_equals_reference(got, query, case, arguments)


@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("feature", ["plain", "all"])
def test_sequence_of_length_zero_gives_zeros(interpreter: Interpreter, feature: str, num_splits: int) -> None:
    case = make_case([0, 130])
    query, arguments = case.query(2, 4), features(feature, 4)
    got = interpreter.run("paged_decode", query, *case.paged(), num_splits=num_splits, **arguments)
    assert torch.equal(got[0], torch.zeros_like(got[0]))
    assert_equals_reference(got, query, case, arguments)


@pytest.mark.parametrize("num_splits", [1, 4])
def test_blocks_behind_the_window_are_never_read(interpreter: Interpreter, num_splits: int) -> None:
    case = make_case([130])
    tables = case.block_tables.clone()
    tables[0, : (130 - 20) // 16] = PADDING
    forgotten = replace(case, block_tables=tables)
    query, arguments = case.query(1, 4), features("window", 4)
    got = interpreter.run("paged_decode", query, *forgotten.paged(), num_splits=num_splits, **arguments)
    assert_equals_reference(got, query, case, arguments)
    assert_equals_reference(paged_decode(query, *forgotten.paged(), **arguments), query, case, arguments)


@pytest.mark.parametrize("num_splits", [1, 3])
def test_result_is_the_same_alone_and_in_a_batch(interpreter: Interpreter, num_splits: int) -> None:
    case = make_case(LENGTHS)
    query, arguments = case.query(len(LENGTHS), 4), {**features("all", 4), "num_splits": num_splits}
    batch = interpreter.run("paged_decode", query, *case.paged(), **arguments)
    kv_layer, tables, lengths = case.paged()
    for s in range(len(LENGTHS)):
        one = slice(s, s + 1)
        alone = interpreter.run("paged_decode", query[one], kv_layer, tables[one], lengths[one], **arguments)
        assert torch.equal(alone[0], batch[s])


@pytest.mark.parametrize("num_splits", [2, 5, 64])
@pytest.mark.parametrize("feature", ["plain", "all"])
def test_each_sequence_is_cut_by_its_own_length(
    interpreter: Interpreter, feature: str, num_splits: int
) -> None:
    """However wide the table is: in a recorded step it always has room for the longest context."""
    case = make_case([1, 64, 65, 300, 129, 0], num_kv_heads=1)
    kv_layer, tables, lengths = case.paged()
    wide = torch.cat([tables, torch.full((6, 500), PADDING, dtype=torch.int32)], dim=1)
    query, arguments = case.query(6, 2), features(feature, 2)
    got = interpreter.run("paged_decode", query, kv_layer, wide, lengths, num_splits=num_splits, **arguments)
    assert_equals_reference(got, query, case, arguments)


def test_kernel_takes_views_of_larger_tensors(interpreter: Interpreter) -> None:
    case = make_case([17, 70])
    kv_layer, tables, lengths = case.paged()
    query = case.query(2, 8)[:, 2:6]  # heads of a fused projection
    wide = torch.cat([tables, torch.full((2, 5), PADDING, dtype=torch.int32)], dim=1)[:, : tables.shape[1]]
    arguments = features("plain", 4)
    got = interpreter.run("paged_decode", query, kv_layer, wide, lengths, num_splits=2, **arguments)
    assert_equals_reference(got, query, case, arguments)


def test_empty_batch_gives_an_empty_result(interpreter: Interpreter) -> None:
    case = make_case([])
    got = interpreter.run("paged_decode", case.query(0, 4), *case.paged(), Softmax(0.3))
    assert got.shape == (0, 4, 16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_wrapper_computes_without_a_gpu(dtype: torch.dtype, without_native: None) -> None:
    case = make_case(LENGTHS, dtype=dtype)
    query, arguments = case.query(len(LENGTHS), 4), features("all", 4)
    got = paged_decode(query, *case.paged(), num_splits=2, **arguments)
    assert torch.equal(got, paged_decode_reference(query, *case.paged(), **arguments))


@pytest.mark.parametrize("num_splits", [0, -1, 65])
def test_refuses_a_number_of_splits_out_of_range(num_splits: int) -> None:
    case = make_case([5])
    with pytest.raises(ValueError, match=f"num_splits is {num_splits}; accepted: None, or 1 to 64"):
        paged_decode(case.query(1, 4), *case.paged(), Softmax(0.3), num_splits=num_splits)


def test_refuses_more_tokens_than_sequences() -> None:
    case = make_case([5])
    with pytest.raises(ValueError, match="query has 2 tokens; accepted: 1, as context_lens has"):
        paged_decode(case.query(2, 4), *case.paged(), Softmax(0.3))


# (query heads, KV heads), head_dim: Llama, gpt-oss, Gemma, and a multi-query model with an odd count.
GPU_SHAPES = [((32, 8), 128), ((64, 8), 64), ((16, 8), 256), ((71, 1), 80)]


@pytest.mark.gpu
@pytest.mark.parametrize("num_splits", [None, 1, 7, 64])
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("heads", "head_dim"), [((32, 8), 128), ((64, 8), 64), ((16, 8), 256), ((71, 1), 80)]
)
def test_compiled_kernel_equals_reference(
    heads: tuple[int, int], head_dim: int, dtype: torch.dtype, feature: str, num_splits: int | None
) -> None:
    num_q_heads, num_kv_heads = heads
    lengths = [1, 63, 64, 1000, 4097, 0]
    case = make_case(lengths, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype).to("cuda")
    query = case.query(len(lengths), num_q_heads)
    arguments = features(feature, num_q_heads, "cuda")
    got = paged_decode(query, *case.paged(), num_splits=num_splits, **arguments)
    assert_equals_reference(got, query, case, arguments)


@pytest.mark.gpu
def test_a_launch_replays_for_other_lengths() -> None:
    """Nothing of a recorded launch depends on the lengths that it was recorded with."""
    lengths = [0, 5000, 17, 300, 64, 8192]
    case = make_case(lengths, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16).to("cuda")
    kv_layer, tables, _ = case.paged()
    query, arguments = case.query(len(lengths), 32), features("plain", 32)
    held = torch.zeros(len(lengths), dtype=torch.int32, device="cuda")
    paged_decode(query, kv_layer, tables, held, **arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = paged_decode(query, kv_layer, tables, held, **arguments)
    held.copy_(case.paged()[2])
    graph.replay()
    assert_equals_reference(got, query, case, arguments)


@pytest.mark.gpu
def test_compiled_kernel_reads_beyond_32_bit_offsets() -> None:
    pool = torch.full((2100, 64, 2, 16, 8, 128), torch.nan, dtype=torch.bfloat16, device="cuda")
    small = make_case([4000], num_kv_heads=8, head_dim=128, dtype=torch.bfloat16).to("cuda")
    shift = pool.shape[0] - small.kv_layer.shape[0]
    pool[shift:, 63] = small.kv_layer
    tables = torch.where(small.block_tables == PADDING, PADDING, small.block_tables + shift)
    case = replace(small, kv_layer=pool[:, 63], block_tables=tables.int())
    query, arguments = case.query(1, 32), features("plain", 32)
    got = paged_decode(query, *case.paged(), **arguments)
    assert_equals_reference(got, query, small, arguments)
