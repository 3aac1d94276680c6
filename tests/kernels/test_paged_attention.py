"""The reference against judges that share no code with it, and what the attention ops refuse."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from kernels.chunked_prefill import chunked_prefill, chunked_prefill_reference
from kernels.paged_attention.arguments import Softmax
from kernels.paged_attention.reference import attend
from kernels.paged_decode import paged_decode, paged_decode_reference
from tests.kernels.cases import Case, features, make_case

# Two ways to compute the same in float64: some hundred roundings of 1e-16 relative to values below 10.
EXACT = 1e-12


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def visible_mask(num_queries: int, context_len: int, window: int | None) -> Tensor:
    return torch.tensor(
        [
            [n <= p and (window is None or n > p - window) for n in range(context_len)]
            for p in range(context_len - num_queries, context_len)
        ]
    )


def torch_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (tensor.transpose(0, 1) for tensor in (query, key, value))
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)
    return out.transpose(0, 1)


@pytest.mark.parametrize("group", [1, 3, 16])
@pytest.mark.parametrize("window", [None, 1, 7])
@pytest.mark.parametrize(("num_queries", "context_len"), [(1, 1), (1, 63), (63, 63), (10, 63)])
def test_reference_equals_torch_attention(
    num_queries: int, context_len: int, window: int | None, group: int
) -> None:
    query, key, value = randn(num_queries, 2 * group, 8), randn(context_len, 2, 8), randn(context_len, 2, 8)
    want = torch_attention(query, key, value, visible_mask(num_queries, context_len, window))
    got = attend(query, key, value, Softmax(0.3, window, None, None))
    torch.testing.assert_close(got, want, atol=EXACT, rtol=0)


def test_reference_equals_torch_attention_on_a_long_context() -> None:
    query, key, value = randn(1000, 4, 8), randn(1000, 2, 8), randn(1000, 2, 8)
    want = torch_attention(query, key, value, torch.ones(1000, 1000).tril().bool())
    got = attend(query, key, value, Softmax(0.3))
    torch.testing.assert_close(got, want, atol=EXACT, rtol=0)


def transformers_attention(family: str, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> Tensor:
    """The attention function of a model family that defines the feature."""
    modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    module: Any = nn.Module().eval()
    module.num_key_value_groups = query.shape[1] // key.shape[1]
    module.sinks = kwargs.pop("sinks", None)
    hidden = torch.where(visible_mask(len(query), len(key), None), 0.0, float("-inf"))
    batch = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    mask = hidden[None, None].double()
    out, _ = modeling.eager_attention_forward(module, *batch, mask, scaling=0.3, **kwargs)
    return out[0]


def test_softcap_means_what_gemma2_means_by_it() -> None:
    query, key, value = randn(5, 4, 8), randn(20, 2, 8), randn(20, 2, 8)
    want = transformers_attention("gemma2", query, key, value, softcap=2.0)
    got = attend(query, key, value, Softmax(0.3, None, 2.0, None))
    # gemma2 computes its softmax in float32, whatever comes in.
    torch.testing.assert_close(got, want, atol=1e-6, rtol=0)


def test_sinks_mean_what_gpt_oss_means_by_them() -> None:
    query, key, value, sinks = randn(5, 4, 8), randn(20, 2, 8), randn(20, 2, 8), randn(4)
    want = transformers_attention("gpt_oss", query, key, value, sinks=sinks)
    got = attend(query, key, value, Softmax(0.3, None, None, sinks))
    torch.testing.assert_close(got, want, atol=EXACT, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_reference_accumulates_half_precision_in_float32(dtype: torch.dtype) -> None:
    query, key, value = (tensor.to(dtype) for tensor in (randn(9, 4, 8), randn(63, 2, 8), randn(63, 2, 8)))
    softmax = Softmax(0.3)
    exact = attend(query.double(), key.double(), value.double(), softmax)
    # Nothing but the last rounding of a mean of values below 4: half an eps of 4.
    atol = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(attend(query, key, value, softmax).double(), exact, atol=atol, rtol=0)


@pytest.mark.parametrize("feature", ["window", "window_below_block", "softcap", "sinks"])
def test_every_feature_changes_the_result(feature: str) -> None:
    case = make_case([63], dtype=torch.float64)
    arguments = features(feature, num_q_heads=4)
    plain = features("plain", num_q_heads=4)
    query = case.query(1, 4)
    with_feature = paged_decode_reference(query, *case.paged(), **arguments)
    without = paged_decode_reference(query, *case.paged(), **plain)
    assert (with_feature - without).abs().max() > 0.01


def test_reference_reads_the_pages_of_each_sequence() -> None:
    case = make_case([1, 16, 17, 63], dtype=torch.float64)
    query = case.query(4, 4)
    got = paged_decode_reference(query, *case.paged(), Softmax(0.3))
    for seq, (key, value) in enumerate(zip(case.keys, case.values, strict=True)):
        want = attend(query[seq : seq + 1], key, value, Softmax(0.3))
        torch.testing.assert_close(got[seq : seq + 1], want, atol=0, rtol=0)


def test_chunk_of_one_token_is_a_decode() -> None:
    case = make_case([1, 16, 17, 63], dtype=torch.float64)
    query, arguments = case.query(4, 4), features("all", num_q_heads=4)
    chunked = chunked_prefill_reference(query, *case.paged(), torch.arange(5, dtype=torch.int32), **arguments)
    assert torch.equal(chunked, paged_decode_reference(query, *case.paged(), **arguments))


def test_prompt_in_chunks_gives_what_the_prompt_at_once_gives() -> None:
    case = make_case([63], dtype=torch.float64)
    query, arguments = case.query(63, 4), features("all", num_q_heads=4)
    kv_layer, tables, _ = case.paged()
    parts = []
    for begin, end in ((0, 1), (1, 16), (16, 50), (50, 63)):
        context = torch.tensor([end], dtype=torch.int32)
        cu_seqlens = torch.tensor([0, end - begin], dtype=torch.int32)
        parts.append(chunked_prefill(query[begin:end], kv_layer, tables, context, cu_seqlens, **arguments))
    cu_seqlens = torch.tensor([0, 63], dtype=torch.int32)
    whole = chunked_prefill(query, *case.paged(), cu_seqlens, **arguments)
    torch.testing.assert_close(torch.cat(parts), whole, atol=EXACT, rtol=0)


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "sinks_per_kv_head": (
        {"softmax": Softmax(0.3, sinks=torch.zeros(2))},
        r"sinks has shape \[2\]; accepted: \[4\]",
    ),
    "sinks_int": ({"softmax": Softmax(0.3, sinks=torch.zeros(4).int())}, "sinks has dtype torch.int32"),
    "query_two_dims": ({"query": torch.zeros(2, 4)}, "query has shape"),
    "query_head_dim": ({"query": torch.zeros(2, 4, 8)}, r"accepted: \[num_tokens, num_q_heads, 16\]"),
    "query_dtype": ({"query": torch.zeros(2, 4, 16).half()}, "query has dtype torch.float16; accepted"),
    "query_int": ({"query": torch.zeros(2, 4, 16).long()}, "query has dtype torch.int64; accepted"),
    "query_strided": ({"query": torch.zeros(2, 16, 4).mT}, "query has stride 4 in its last dimension"),
    "query_heads": ({"query": torch.zeros(2, 3, 16)}, "query has 3 heads; accepted: a multiple"),
    "query_no_heads": ({"query": torch.zeros(2, 0, 16)}, "query has 0 heads"),
    "kv_not_paired": ({"kv_layer": torch.zeros(4, 1, 16, 2, 16)}, r"kv_layer has shape .* \[num_blocks, 2, "),
    "kv_wide_heads": ({"kv_layer": torch.zeros(4, 2, 16, 2, 257)}, "head_dim 257; accepted: 1 to 256"),
    "tables_long": ({"block_tables": torch.zeros(2, 2).long()}, "block_tables has dtype torch.int64"),
    "tables_rows": ({"block_tables": torch.zeros(3, 2).int()}, r"block_tables has shape \[3, 2\]"),
    "tables_strided": ({"block_tables": torch.zeros(2, 2).int().T}, "block_tables has stride 2"),
    "context_long": ({"context_lens": torch.ones(2).long()}, "context_lens has dtype torch.int64"),
    "device": ({"context_lens": torch.ones(2, device="meta").int()}, "context_lens is on meta; accepted"),
}


def good_arguments() -> tuple[Case, dict[str, Any]]:
    case = make_case([5, 7])
    kv_layer, block_tables, context_lens = case.paged()
    arguments = {
        "query": case.query(2, 4),
        "kv_layer": kv_layer,
        "block_tables": block_tables,
        "context_lens": context_lens,
        "softmax": Softmax(0.3),
    }
    return case, arguments


BAD_SOFTMAX: dict[str, tuple[dict[str, Any], str]] = {
    "scale_zero": ({"scale": 0.0}, "scale is 0.0; accepted: a finite number above 0"),
    "scale_nan": ({"scale": float("nan")}, "scale is nan"),
    "window_zero": ({"sliding_window": 0}, "sliding_window is 0; accepted: None, or at least 1"),
    "softcap_negative": ({"softcap": -1.0}, "softcap is -1.0; accepted: None"),
}


@pytest.mark.parametrize("bad", BAD_SOFTMAX)
def test_a_softmax_refuses(bad: str) -> None:
    changed, message = BAD_SOFTMAX[bad]
    with pytest.raises(ValueError, match=message):
        Softmax(**{"scale": 0.3, **changed})


@pytest.mark.parametrize("bad", BAD_ARGUMENTS)
def test_decode_refuses(bad: str) -> None:
    _, arguments = good_arguments()
    changed, message = BAD_ARGUMENTS[bad]
    with pytest.raises(ValueError, match=message):
        paged_decode(**{**arguments, **changed})


@pytest.mark.parametrize("bad", BAD_ARGUMENTS)
def test_prefill_refuses(bad: str) -> None:
    _, arguments = good_arguments()
    changed, message = BAD_ARGUMENTS[bad]
    with pytest.raises(ValueError, match=message):
        chunked_prefill(cu_seqlens_q=torch.tensor([0, 1, 2], dtype=torch.int32), **{**arguments, **changed})
