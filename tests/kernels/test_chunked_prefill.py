from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.chunked_prefill import chunked_prefill, chunked_prefill_reference
from kernels.paged_attention.arguments import Softmax
from kernels.span_sums.kernel import SPAN, count_spans
from tests.kernels.cases import FEATURES, PADDING, Case, features, make_case, tolerance, widen
from tests.kernels.interpreter import Interpreter

# (context, chunk) of each sequence: whole prompts, later chunks, decodes and a sequence with nothing to do,
# on both sides of page borders (16), KV tile borders (64) and query tile borders (64 / group).
BATCH = [(1, 1), (63, 63), (17, 1), (100, 33), (20, 0), (40, 8), (130, 1)]


def cu_seqlens(chunks: list[int]) -> Tensor:
    return torch.tensor([0, *chunks]).cumsum(0).int()


def ragged_case(batch: list[tuple[int, int]], **kwargs: Any) -> tuple[Case, Tensor]:
    return make_case([context for context, _ in batch], **kwargs), cu_seqlens([chunk for _, chunk in batch])


def assert_equals_reference(
    got: Tensor, query: Tensor, case: Case, cu_seqlens_q: Tensor, arguments: dict[str, Any]
) -> None:
    want = chunked_prefill_reference(widen(query), *case.exact(), cu_seqlens_q, **arguments)
    assert got.dtype == query.dtype
    torch.testing.assert_close(widen(got), want, atol=tolerance(case), rtol=0)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_kernel_equals_reference(interpreter: Interpreter, dtype: torch.dtype, feature: str) -> None:
    case, cu = ragged_case(BATCH, dtype=dtype)
    query, arguments = case.query(int(cu[-1]), 4), features(feature, 4)
    got = interpreter.run("chunked_prefill", query, *case.paged(), cu, **arguments)
    assert_equals_reference(got, query, case, cu, arguments)


@pytest.mark.parametrize(("num_q_heads", "num_kv_heads"), [(1, 1), (3, 3), (6, 2), (8, 1), (16, 1), (71, 1)])
def test_kernel_serves_every_group_size(
    interpreter: Interpreter, num_q_heads: int, num_kv_heads: int
) -> None:
    case, cu = ragged_case([(70, 70), (17, 1), (9, 4)], num_kv_heads=num_kv_heads)
    query, arguments = case.query(75, num_q_heads), features("sinks", num_q_heads)
    got = interpreter.run("chunked_prefill", query, *case.paged(), cu, **arguments)
    assert_equals_reference(got, query, case, cu, arguments)


@pytest.mark.parametrize("block_size", [1, 24, 128])
@pytest.mark.parametrize("head_dim", [8, 24, 80, 256])
def test_kernel_serves_every_head_and_block_size(
    interpreter: Interpreter, head_dim: int, block_size: int
) -> None:
    case, cu = ragged_case([(33, 5), (1, 1)], head_dim=head_dim, block_size=block_size, num_kv_heads=1)
    query, arguments = case.query(6, 2), features("plain", 2)
    got = interpreter.run("chunked_prefill", query, *case.paged(), cu, **arguments)
    assert_equals_reference(got, query, case, cu, arguments)


@pytest.mark.parametrize("num_seqs", [1, 2, 3, 8, 9])
def test_every_program_finds_its_sequence(interpreter: Interpreter, num_seqs: int) -> None:
    case, cu = ragged_case([(20 + s, (7 * s + 3) % 20) for s in range(num_seqs)])
    query, arguments = case.query(int(cu[-1]), 8), features("plain", 8)
    got = interpreter.run("chunked_prefill", query, *case.paged(), cu, **arguments)
    assert_equals_reference(got, query, case, cu, arguments)


def test_blocks_behind_the_window_are_never_read(interpreter: Interpreter) -> None:
    case, cu = ragged_case([(130, 10)])
    tables = case.block_tables.clone()
    tables[0, : (130 - 10 - 20 + 1) // 16] = PADDING
    forgotten = replace(case, block_tables=tables)
    query, arguments = case.query(10, 4), features("window", 4)
    got = interpreter.run("chunked_prefill", query, *forgotten.paged(), cu, **arguments)
    assert_equals_reference(got, query, case, cu, arguments)
    on_cpu = chunked_prefill(query, *forgotten.paged(), cu, **arguments)
    assert_equals_reference(on_cpu, query, case, cu, arguments)


@pytest.mark.parametrize("feature", ["plain", "all"])
def test_prompt_in_chunks_gives_what_the_prompt_at_once_gives(interpreter: Interpreter, feature: str) -> None:
    case, cu = ragged_case([(150, 150)])
    query, arguments = case.query(150, 4), features(feature, 4)
    kv_layer, tables, _ = case.paged()
    parts = [
        interpreter.run("chunked_prefill", query[begin:end], kv_layer, tables, *lengths, **arguments)
        for begin, end, *lengths in chunks_of(150)
    ]
    assert_equals_reference(torch.cat(parts), query, case, cu, arguments)


def chunks_of(num_tokens: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """(begin, end, context_lens, cu_seqlens_q) of a prompt's chunks, cut beside every border."""
    for begin, end in pairwise([0, 1, 67, num_tokens - 1, num_tokens]):
        yield begin, end, torch.tensor([end], dtype=torch.int32), cu_seqlens([end - begin])


# Contexts of one span and of several, the last one full or not; by itself, in company, as a chunk.
DECODES = [(1, 1), (64, 1), (65, 1), (200, 1), (128, 1), (700, 1)]
MIXED = [(64, 64), (200, 1), (150, 40), (20, 0), (130, 1)]


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("num_splits", [None, 2, 9])
@pytest.mark.parametrize("batch", [DECODES, MIXED, [(200, 3), (70, 0), (130, 0)]], ids=str)
def test_sums_of_spans_equal_the_reference(
    interpreter: Interpreter, batch: list[tuple[int, int]], num_splits: int | None, feature: str
) -> None:
    case, cu = ragged_case(batch)
    query, arguments = case.query(int(cu[-1]), 4), features(feature, 4)
    splits = {"span": 64, "num_splits": num_splits}
    got = interpreter.run("chunked_prefill", query, *case.paged(), cu, **splits, **arguments)
    assert_equals_reference(got, query, case, cu, arguments)


@pytest.mark.parametrize("num_decodes", [1, 3, 4])
@pytest.mark.parametrize("feature", ["plain", "all"])
def test_decodes_in_front_of_chunks_go_to_the_kernel_for_decodes(
    interpreter: Interpreter, feature: str, num_decodes: int
) -> None:
    """Both write one output, and the kernel for chunks leaves no tile out."""
    decodes = [(70, 1), (1, 1), (130, 1), (17, 1)]
    case, cu = ragged_case([*decodes, (100, 33), (20, 0), (40, 8), (5, 1)])
    query, arguments = case.query(int(cu[-1]), 4), features(feature, 4)
    got = interpreter.run("chunked_prefill", query, *case.paged(), cu, num_decodes=num_decodes, **arguments)
    assert_equals_reference(got, query, case, cu, arguments)


@pytest.mark.parametrize("num_decodes", [-1, 2])
def test_refuses_more_decodes_than_sequences(num_decodes: int) -> None:
    case, cu = ragged_case([(5, 1)])
    with pytest.raises(ValueError, match=f"num_decodes is {num_decodes}; accepted: 0 to 1"):
        chunked_prefill(case.query(1, 4), *case.paged(), cu, Softmax(0.3), num_decodes=num_decodes)


@pytest.mark.parametrize("span", [0, -64, 96])
def test_refuses_a_span_that_cuts_tiles(span: int) -> None:
    case, cu = ragged_case([(5, 1)])
    with pytest.raises(ValueError, match=f"span is {span}; accepted: None, or a multiple of 64"):
        chunked_prefill(case.query(1, 4), *case.paged(), cu, Softmax(0.3), span=span)


@given(context=st.integers(1, 2_000_000), spare=st.integers(0, 40), window=st.none() | st.integers(1, 5000))
def test_there_is_room_for_every_span_that_a_token_sees(context: int, spare: int, window: int | None) -> None:
    first = 0 if window is None else max(context - window, 0)
    seen = -(-context // SPAN) - first // SPAN
    assert seen <= count_spans(context + spare, window, SPAN)


def test_kernel_takes_views_of_larger_tensors(interpreter: Interpreter) -> None:
    case, cu = ragged_case([(17, 4), (70, 1)])
    kv_layer, tables, lengths = case.paged()
    query = case.query(5, 8)[:, 2:6]  # heads of a fused projection
    wide = torch.cat([tables, torch.full((2, 5), PADDING, dtype=torch.int32)], dim=1)[:, : tables.shape[1]]
    arguments = features("plain", 4)
    got = interpreter.run("chunked_prefill", query, kv_layer, wide, lengths, cu, **arguments)
    assert_equals_reference(got, query, case, cu, arguments)


def test_batch_without_tokens_gives_an_empty_result(interpreter: Interpreter) -> None:
    case, cu = ragged_case([(20, 0), (5, 0)])
    got = interpreter.run("chunked_prefill", case.query(0, 4), *case.paged(), cu, Softmax(0.3))
    assert got.shape == (0, 4, 16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_wrapper_computes_without_a_gpu(dtype: torch.dtype, without_native: None) -> None:
    case, cu = ragged_case(BATCH, dtype=dtype)
    query, arguments = case.query(int(cu[-1]), 4), features("all", 4)
    got = chunked_prefill(query, *case.paged(), cu, **arguments)
    assert torch.equal(got, chunked_prefill_reference(query, *case.paged(), cu, **arguments))


BAD_CHUNKS: dict[str, tuple[Tensor, str]] = {
    "too_few": (torch.tensor([0, 3]).int(), r"cu_seqlens_q has shape \[2\]; accepted: \[3\]"),
    "int64": (torch.tensor([0, 1, 3]), "cu_seqlens_q has dtype torch.int64; accepted: torch.int32"),
    "strided": (torch.tensor([0, 0, 1, 1, 3, 3]).int()[::2], "cu_seqlens_q has stride 2"),
    "begins_late": (torch.tensor([1, 2, 3]).int(), r"cu_seqlens_q is \[1, 2, 3\]; accepted: from 0"),
    "falls": (torch.tensor([0, 4, 3]).int(), r"cu_seqlens_q is \[0, 4, 3\]; accepted: from 0, never falling"),
    "ends_early": (torch.tensor([0, 1, 2]).int(), r"cu_seqlens_q is \[0, 1, 2\]; .* to num_tokens \(3\)"),
    "beyond_context": (torch.tensor([0, 3, 3]).int(), r"context_lens is \[2, 9\]; accepted: .* \[3, 0\]"),
}


@pytest.mark.parametrize("bad", BAD_CHUNKS)
def test_refuses_chunks(bad: str) -> None:
    case = make_case([2, 9])
    cu, message = BAD_CHUNKS[bad]
    with pytest.raises(ValueError, match=message):
        chunked_prefill(case.query(3, 4), *case.paged(), cu, Softmax(0.3))


# (query heads, KV heads), head_dim: Llama, gpt-oss, Gemma, and a multi-query model with an odd count.
GPU_SHAPES = [((32, 8), 128), ((64, 8), 64), ((16, 8), 256), ((71, 1), 80)]


@pytest.mark.gpu
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("heads", "head_dim"), [((32, 8), 128), ((64, 8), 64), ((16, 8), 256), ((71, 1), 80)]
)
def test_compiled_kernel_equals_reference(
    heads: tuple[int, int], head_dim: int, dtype: torch.dtype, feature: str
) -> None:
    num_q_heads, num_kv_heads = heads
    batch = [(1000, 1000), (4097, 1), (2048, 512), (63, 63), (20, 0), (1, 1), (129, 128)]
    case, cu = ragged_case(batch, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)
    case, cu = case.to("cuda"), cu.cuda()
    query = case.query(int(cu[-1]), num_q_heads)
    arguments = features(feature, num_q_heads, "cuda")
    got = chunked_prefill(query, *case.paged(), cu, **arguments)
    assert_equals_reference(got, query, case, cu, arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("span", [None, 64, 256])
@pytest.mark.parametrize("feature", ["plain", "window", "all"])
def test_compiled_row_is_the_same_to_the_bit_whatever_the_chunks(feature: str, span: int | None) -> None:
    # Only compiled: the interpreter's matrix product adds up a row by where it stands in the matrix.
    case, cu = ragged_case([(700, 700)], head_dim=128, dtype=torch.bfloat16)
    case, cu = case.to("cuda"), cu.cuda()
    query, arguments = case.query(700, 8), {**features(feature, 8, "cuda"), "span": span}
    whole = chunked_prefill(query, *case.paged(), cu, **arguments)
    for begin, end, context_lens, chunk in chunks_of(700):
        lengths = context_lens.cuda(), chunk.cuda()
        part = chunked_prefill(query[begin:end], case.kv_layer, case.block_tables, *lengths, **arguments)
        assert torch.equal(part, whole[begin:end])


def test_refuses_splits_without_a_span() -> None:
    case, cu = ragged_case([(5, 1)])
    with pytest.raises(ValueError, match="num_splits is 4; accepted: None, or at least 1 with a span"):
        chunked_prefill(case.query(1, 4), *case.paged(), cu, Softmax(0.3), num_splits=4)


@pytest.mark.gpu
@pytest.mark.parametrize("num_splits", [None, 1, 3, 64])
@pytest.mark.parametrize("feature", ["plain", "window", "all"])
def test_compiled_decodes_have_the_bits_of_their_prompt(feature: str, num_splits: int | None) -> None:
    """However many programs share their spans."""
    case, cu = ragged_case([(700, 700)], head_dim=128, dtype=torch.bfloat16)
    case, cu = case.to("cuda"), cu.cuda()
    query, arguments = case.query(700, 8), {**features(feature, 8, "cuda"), "span": 64}
    whole = chunked_prefill(query, *case.paged(), cu, **arguments)
    places = [0, 63, 64, 130, 511, 512, 699]
    context_lens = torch.tensor([place + 1 for place in places], dtype=torch.int32).cuda()
    tables = case.block_tables.expand(len(places), -1).contiguous()
    ones = cu_seqlens([1] * len(places)).cuda()
    decoded = chunked_prefill(
        query[places], case.kv_layer, tables, context_lens, ones, num_splits=num_splits, **arguments
    )
    assert torch.equal(decoded, whole[places])


@pytest.mark.gpu
@pytest.mark.parametrize("span", [None, 64])
def test_idle_rows_between_decodes_are_zeros(span: int | None) -> None:
    """A recorded step has such rows behind its own: one token each, and no context."""
    case, _ = ragged_case([(200, 1), (0, 0), (130, 1)])
    query, cu = case.query(3, 4), cu_seqlens([1, 1, 1])
    on_gpu = case.to("cuda")
    got = chunked_prefill(query.cuda(), *on_gpu.paged(), cu.cuda(), Softmax(0.3), span=span).cpu()
    want = chunked_prefill_reference(query, *case.exact(), cu, Softmax(0.3))
    assert torch.equal(got[1], torch.zeros(4, 16))
    torch.testing.assert_close(got[[0, 2]], want[[0, 2]], atol=tolerance(case), rtol=0)
