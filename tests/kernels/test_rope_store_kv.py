from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from kernels.launch import KV_LIMITS
from kernels.rope_store_kv import HeadNorms, rope_store_kv, rope_store_kv_reference
from kernels.store_kv import store_kv_reference
from tests.kernels.interpreter import Interpreter
from tests.kernels.quantised_cases import POISON, STORED, multiplied_out, poisoned_pool, step_at, views_of
from tests.kernels.tensors import FLOATS, assert_close, randn, same_bits

LAYER = 1
EPS = 1e-5
SLOTS = [37, -1, 0, 79]
NORMS: dict[str, dict[str, bool]] = {
    "plain": {},
    "normed": {"query": True, "key": True},
    "normed_as_gemma": {"query": True, "key": True, "unit_offset": True},
    "key_only": {"key": True},
}


@dataclass(frozen=True, slots=True)
class Case:
    """Query, key and value as views of a merged projection; a pool of NaN; the rest as the op takes it."""

    query: Tensor
    key: Tensor
    value: Tensor
    cos: Tensor
    sin: Tensor
    pool: Tensor
    slot_mapping: Tensor

    def args(self) -> tuple[Tensor, ...]:
        layer = self.pool[:, LAYER]
        return self.query, self.key, self.value, self.cos, self.sin, layer, self.slot_mapping

    def to(self, device: str) -> "Case":
        moved = {name: getattr(self, name).to(device) for name in self.__slots__}
        return Case(**moved)


def make_case(
    num_q_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    rotary_dim: int | None = None,
    slots: list[int] = SLOTS,
    dtype: torch.dtype = torch.float32,
) -> Case:
    rotary_dim = rotary_dim or head_dim
    heads = num_q_heads + 2 * num_kv_heads
    # One more head than is used, and NaN, so that reading past the end of a token's shows.
    qkv = torch.full((len(slots), heads + 1, head_dim), torch.nan, dtype=dtype)
    qkv[:, :heads] = randn(len(slots), heads, head_dim, dtype=dtype)
    query, key, value, _ = qkv.split([num_q_heads, num_kv_heads, num_kv_heads, 1], dim=1)
    positions = torch.arange(len(slots)) * 5.0
    angles = positions[:, None] / 100 ** (torch.arange(rotary_dim // 2) / rotary_dim)
    angles = torch.cat((angles, angles), dim=1)
    pool = torch.full((5, 3, 2, 16, num_kv_heads, head_dim), torch.nan, dtype=dtype)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return Case(query, key, value, cos, sin, pool, torch.tensor(slots, dtype=torch.int64))


def norms(name: str, case: Case) -> dict[str, Any]:
    """Keyword arguments for the op."""
    chosen, head_dim = NORMS[name], case.query.shape[-1]
    weights = {
        kind: randn(head_dim, dtype=case.query.dtype, seed=seed)
        for seed, kind in enumerate(("query", "key"))
        if chosen.get(kind)
    }
    return {"norms": HeadNorms(**weights, eps=EPS, unit_offset=chosen.get("unit_offset", False))}


def expected(case: Case, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The rotated query and the pool, by the reference."""
    copy = replace(case, pool=case.pool.clone())
    return rope_store_kv_reference(*copy.args(), **arguments), copy.pool


def interpreted(interpreter: Interpreter, case: Case, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    query, after = interpreter.run_and_return_args("rope_store_kv", *case.args(), **arguments)
    return query, after[5].as_strided(case.pool.shape, case.pool.stride(), storage_offset=0)


def assert_near(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor]) -> None:
    """NaN lies where it shall, and nowhere else.

    A rotated pair is computed from the same numbers in float32 and rounded once; a norm before it may lie
    two roundings away (see `add_rms_norm`; the interpreter's are twice as coarse), and where a pair's two
    products cancel that counts relative to them.
    """
    for entry, other in zip(got, want, strict=True):
        assert torch.equal(entry.isnan(), other.isnan())
        present = other[~other.isnan()]
        largest = float(present.abs().max()) if present.numel() else 0.0
        room = 4 * torch.finfo(other.dtype).eps * largest
        assert_close(entry[~entry.isnan()], present, eps=8 if other.dtype == torch.float32 else 1, atol=room)


def test_reference_rotates_as_transformers_and_stores() -> None:
    case = make_case(head_dim=24)
    query, key = apply_rotary_pos_emb(case.query, case.key, case.cos, case.sin, unsqueeze_dim=1)
    got, pool = expected(case, {})
    stored = case.pool.clone()
    store_kv_reference(key, case.value, stored[:, LAYER], case.slot_mapping)
    assert same_bits(got, query)
    assert same_bits(pool, stored)


def test_reference_leaves_the_dimensions_beyond_the_rotary_ones() -> None:
    case = make_case(head_dim=24, rotary_dim=8)
    got, pool = expected(case, {})
    turned, _ = apply_rotary_pos_emb(case.query[..., :8], case.key[..., :8], case.cos, case.sin)
    assert same_bits(got, torch.cat((turned, case.query[..., 8:]), dim=-1))
    assert same_bits(pool[0, LAYER, 0, 0, :, 8:], case.key[2, :, 8:])


def test_reference_normalises_each_head_before_it_turns() -> None:
    case = make_case()
    arguments = norms("normed", case)
    norm = LlamaRMSNorm(16, EPS)
    norm.weight.data = arguments["norms"].query
    query, _ = apply_rotary_pos_emb(norm(case.query).detach(), case.key, case.cos, case.sin)
    assert same_bits(expected(case, arguments)[0], query)


def test_without_a_gpu_the_reference_runs(without_native: None) -> None:
    case = make_case()
    want = expected(case, {})
    got = rope_store_kv(*case.args())
    assert same_bits(got, want[0])
    assert same_bits(case.pool, want[1])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_kernel_normalises_rotates_and_stores(
    interpreter: Interpreter, norm: str, dtype: torch.dtype
) -> None:
    case = make_case(dtype=dtype)
    arguments = norms(norm, case)
    got = interpreted(interpreter, case, arguments)
    assert got[0].is_contiguous()
    assert_near(got, expected(case, arguments))
    assert same_bits(got[1][0, LAYER, 1, 0], case.value[2])  # values, whose bits nothing touches


# More heads than a program takes, head counts and sizes that are no powers of two, one KV head.
SHAPES = [(9, 9, 16, 16), (9, 3, 16, 16), (3, 1, 80, 80), (2, 2, 24, 8), (1, 1, 2, 2), (4, 4, 80, 32)]


@pytest.mark.parametrize("norm", ["plain", "normed"])
@pytest.mark.parametrize(("num_q_heads", "num_kv_heads", "head_dim", "rotary_dim"), SHAPES)
def test_kernel_takes_any_heads(
    interpreter: Interpreter, num_q_heads: int, num_kv_heads: int, head_dim: int, rotary_dim: int, norm: str
) -> None:
    case = make_case(num_q_heads, num_kv_heads, head_dim, rotary_dim)
    arguments = norms(norm, case)
    assert_near(interpreted(interpreter, case, arguments), expected(case, arguments))


def test_kernel_takes_angles_in_float32(interpreter: Interpreter) -> None:
    case = make_case(dtype=torch.bfloat16)
    case = replace(case, cos=case.cos.float() * 0.999, sin=case.sin.float() * 0.999)
    assert_near(interpreted(interpreter, case, {}), expected(case, {}))


@pytest.mark.parametrize("slots", [[], [-1, -1]], ids=["no_tokens", "none_kept"])
def test_what_is_not_kept_is_not_stored(interpreter: Interpreter, slots: list[int]) -> None:
    case = make_case(slots=slots)
    query, pool = interpreted(interpreter, case, {})
    assert pool.isnan().all()
    assert query.shape == (len(slots), 4, 16)
    assert not query.isnan().any()


def test_a_token_has_the_same_bits_in_any_company(interpreter: Interpreter) -> None:
    case = make_case()
    arguments = norms("normed", case)
    together, _ = interpreted(interpreter, case, arguments)
    for token in range(4):
        rows = slice(token, token + 1)
        one = {name: getattr(case, name)[rows] for name in case.__slots__ if name != "pool"}
        alone, _ = interpreted(interpreter, replace(case, **one), arguments)
        assert same_bits(alone[0], together[token])


@pytest.mark.parametrize("stored_as", STORED, ids=str)
@pytest.mark.parametrize("norm", ["plain", "normed"])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(16, 16), (24, 8)])
def test_kernel_quantises_what_it_would_store(
    interpreter: Interpreter, head_dim: int, rotary_dim: int, norm: str, stored_as: torch.dtype
) -> None:
    case = make_case(head_dim=head_dim, rotary_dim=rotary_dim)
    arguments = norms(norm, case)
    _, stored = expected(case, arguments)
    pool = poisoned_pool(5, 16, 2, head_dim, stored=stored_as)
    *others, _, slots = case.args()
    kv_layer, kv_scales = views_of(pool)
    query, after = interpreter.run_and_return_args(
        "rope_store_kv", *others, kv_layer, slots, kv_scales, **arguments
    )
    assert_near((query, stored), (expected(case, arguments)[0], stored))
    scales = after[7].transpose(2, 3)
    kept = ~stored[:, LAYER].isnan().any(-1)
    assert torch.equal(kept, ~scales.isnan())
    assert (after[5].view(torch.uint8)[~kept] == POISON).all()
    values, scales, want = after[5].float()[kept], scales[kept], stored[:, LAYER][kept]
    # Where it lies between two steps, the kernel's rounding may choose the other one.
    off = (multiplied_out(values, scales) - want).abs()
    assert (off <= 0.501 * scales[:, None] * step_at(want / scales[:, None], stored_as)).all()
    assert (values.abs().amax(-1) == KV_LIMITS[stored_as]).all()


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "query_tokens": ({"query": torch.zeros(3, 4, 16)}, r"query has shape \[3, 4, 16\]"),
    "query_dtype": ({"query": torch.zeros(2, 4, 16).half()}, "query has dtype torch.float16"),
    "key_heads": ({"key": torch.zeros(2, 3, 16)}, r"key has shape \[2, 3, 16\]; accepted: \[2, 2, 16\]"),
    "value_strided": ({"value": torch.zeros(2, 16, 2).mT}, "value has stride 2 in its last dimension"),
    "slot_past_the_end": ({"slot_mapping": torch.tensor([0, 80])}, "slot_mapping holds 80; accepted: below"),
    "cos_odd": (
        {"cos": torch.zeros(2, 7), "sin": torch.zeros(2, 7)},
        "cos has 7 columns; accepted: an even number from 2 to 16",
    ),
    "cos_wide": ({"cos": torch.zeros(2, 18), "sin": torch.zeros(2, 18)}, "cos has 18 columns"),
    "sin_differs": ({"sin": torch.zeros(2, 8)}, r"sin has shape \[2, 8\]; accepted: \[2, 16\]"),
    "cos_of_ints": ({"cos": torch.zeros(2, 16).int()}, "cos has dtype torch.int32"),
    "norm_size": ({"norms": HeadNorms(torch.ones(64))}, r"norms.query has shape \[64\]; accepted: \[16\]"),
    "norm_dtype": ({"norms": HeadNorms(None, torch.ones(16).half())}, "norms.key has dtype torch.float16"),
    "device": ({"cos": torch.zeros(2, 16, device="meta")}, "cos is on meta; accepted: cpu"),
}


@pytest.mark.parametrize("bad", BAD_ARGUMENTS)
def test_refuses(bad: str) -> None:
    changed, message = BAD_ARGUMENTS[bad]
    good = {
        "query": torch.zeros(2, 4, 16),
        "key": torch.zeros(2, 2, 16),
        "value": torch.zeros(2, 2, 16),
        "cos": torch.zeros(2, 16),
        "sin": torch.zeros(2, 16),
        "kv_layer": torch.zeros(5, 2, 16, 2, 16),
        "slot_mapping": torch.tensor([0, 1]),
    }
    with pytest.raises(ValueError, match=message):
        rope_store_kv(**{**good, **changed})


@pytest.mark.gpu
@pytest.mark.parametrize("stored_as", STORED, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(128, 128), (96, 72)])
def test_compiled_kernel_quantises(
    head_dim: int, rotary_dim: int, dtype: torch.dtype, stored_as: torch.dtype
) -> None:
    case = make_case(32, 8, head_dim, rotary_dim, list(range(79, -1, -1)), dtype)
    query, key, value, cos, sin, _, slots = case.to("cuda").args()
    pool, stored = (
        poisoned_pool(5, 16, 8, head_dim, "cuda", stored_as),
        expected(case, {})[1][:, LAYER].float(),
    )
    kv_layer, kv_scales = views_of(pool)
    rope_store_kv(query, key, value, cos, sin, kv_layer, slots, kv_scales)
    scales = kv_scales.transpose(2, 3).cpu()
    # A number that the kernel rounds to the dtype's next one may also be quantised to the next step.
    off = (multiplied_out(kv_layer.cpu(), scales) - stored).abs()
    scales = scales[..., None]
    steps = scales * step_at(stored / scales, stored_as)
    assert (off <= 0.51 * steps + torch.finfo(dtype).eps * stored.abs()).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("num_q_heads", "num_kv_heads", "head_dim", "rotary_dim"),
    [(32, 8, 128, 128), (28, 4, 128, 128), (32, 32, 96, 72), (8, 4, 256, 256), (3, 1, 80, 32)],
)
def test_compiled_kernel_matches(
    num_q_heads: int, num_kv_heads: int, head_dim: int, rotary_dim: int, norm: str, dtype: torch.dtype
) -> None:
    slots = [-1 if slot % 7 == 0 else slot for slot in range(79, -1, -1)]
    case = make_case(num_q_heads, num_kv_heads, head_dim, rotary_dim, slots, dtype)
    arguments = norms(norm, case)
    want = expected(case, arguments)
    there = case.to("cuda")
    for name in arguments.keys() & {"query_norm", "key_norm"}:
        arguments[name] = arguments[name].cuda()
    got = rope_store_kv(*there.args(), **arguments)
    assert_near((got.cpu(), there.pool.cpu()), want)
