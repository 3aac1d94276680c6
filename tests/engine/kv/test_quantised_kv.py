"""8-bit KV in the engine: where its bytes lie, and that a step over it means what attention means."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.building.build import build
from engine.building.settings import EngineSettings
from engine.calibration.determinism_check import check_determinism
from engine.calibration.sweep import Sweep
from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import ALIGNMENT, BlockLayout, KVPool
from engine.kv.quantised_rows import QuantisedRows
from engine.model.attention.attention import AttentionStep, CpuAttention, KernelAttention, LayerOrder
from engine.model.attention.step_batch import StepBatch
from engine.model.attention.tiled_attention import Heights, TiledAttention
from engine.model.fingerprint import fingerprint
from engine.model.model import load_model
from engine.model.quantised.quantisation import Quantisation
from kernels.paged_attention.arguments import Softmax
from kernels.paged_attention.reference import attend
from kernels.store_kv import quantise
from tests import model_zoo
from tests.engine.ragged import Piece, make_batch, shuffled_tables

CPU = torch.device("cpu")
NUM_KV_HEADS, GROUP, HEAD_DIM = 2, 4, 8
LAYER, NUM_LAYERS = 1, 3
STORED = [torch.int8, torch.float8_e4m3fn]
SHAPES = [(16, 8, 128), (4, 2, 64), (5, 3, 7), (1, 1, 1)]
LAYOUTS = [BlockLayout(NUM_LAYERS, *shape, torch.float32, stored) for shape in SHAPES for stored in STORED]


def bytes_of(pool: KVPool, view: Tensor, block: int) -> range:
    begin = view[block].data_ptr() - pool.tensor.data_ptr()
    assert view[block].is_contiguous()
    return range(begin, begin + view[block].numel() * view.element_size())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_values_and_scales_share_a_block_and_no_byte(layout: BlockLayout) -> None:
    pool = KVPool(layout, 3)
    for block in range(3):
        parts: list[range] = []
        for layer in range(NUM_LAYERS):
            scales = pool.scales(layer)
            assert scales is not None
            parts += [bytes_of(pool, pool.layer(layer), block), bytes_of(pool, scales, block)]
        assert all(part.start % ALIGNMENT == 0 for part in parts)
        assert parts[0].start == block * pool.block_bytes
        assert parts[-1].stop <= (block + 1) * pool.block_bytes
        assert all(entry.stop <= other.start for entry, other in itertools.pairwise(parts))


def test_names_say_what_is_kept_in_fewer_bits() -> None:
    assert {choice.value: (choice.weights, choice.logits, choice.kv) for choice in Quantisation} == {
        "none": (0, False, None),
        "int8": (8, False, None),
        "int4": (4, False, None),
        "kv8": (0, False, "int8"),
        "kvfp8": (0, False, "float8_e4m3fn"),
        "int8+kv8": (8, False, "int8"),
        "int8+kvfp8": (8, False, "float8_e4m3fn"),
        "int4+kv8": (4, False, "int8"),
        "int4+kvfp8": (4, False, "float8_e4m3fn"),
        "int8+logits8": (8, True, None),
        "int4+logits8": (4, True, None),
        "int8+logits8+kv8": (8, True, "int8"),
        "int4+logits8+kv8": (4, True, "int8"),
    }


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_a_token_takes_a_byte_a_number_and_a_scale_a_head(stored: torch.dtype) -> None:
    half, eight = (BlockLayout(32, 16, 8, 128, torch.bfloat16, entry) for entry in (None, stored))
    assert half.block_bytes == 16 * 32 * 2 * 8 * 128 * 2
    assert eight.block_bytes == 16 * 32 * 2 * 8 * (128 + 4)


def test_only_known_ways_to_store_are_accepted() -> None:
    with pytest.raises(
        ValueError, match=r"stored is torch.int16; accepted: None, torch.int8, torch.float8_e4m3fn"
    ):
        BlockLayout(1, 1, 1, 1, torch.float32, torch.int16)


def quantised_contexts(lengths: list[tuple[int, int]], seed: int, stored: torch.dtype) -> list[Tensor]:
    """[2, N, heads, dim] each, of numbers that quantising does not change but for the last bit."""
    generator = torch.Generator().manual_seed(seed)
    contexts = []
    for before, new in lengths:
        rows = torch.randn(2, before + new, NUM_KV_HEADS, HEAD_DIM, generator=generator)
        values, scales = quantise(rows, stored)
        contexts.append(values.float() * scales[..., None])
    return contexts


def run_in_two_steps(
    lengths: list[tuple[int, int]],
    contexts: list[Tensor],
    query: Tensor,
    softmax: Softmax,
    make_step: Callable[[KVPool, StepBatch], AttentionStep],
    block_size: int,
    stored: torch.dtype,
) -> Tensor:
    """Store what came before the step by a step of its own, into a pool of NaN."""
    tables, num_blocks = shuffled_tables([before + new for before, new in lengths], block_size, 7)
    layout = BlockLayout(NUM_LAYERS, block_size, NUM_KV_HEADS, HEAD_DIM, torch.float32, stored)
    pool = KVPool(layout, num_blocks)
    pool.tensor.fill_(0xFF)

    def run(pieces: list[Piece], parts: list[Tensor], query: Tensor) -> Tensor:
        key, value = torch.cat(parts, dim=1)
        step = make_step(pool, make_batch(pieces, block_size))
        return step.attend(LAYER, query, key, value, softmax)

    earlier = [index for index, (before, _) in enumerate(lengths) if before]
    if earlier:
        run(
            [Piece(0, [0] * lengths[index][0], tables[index]) for index in earlier],
            [contexts[index][:, : lengths[index][0]] for index in earlier],
            torch.zeros(sum(before for before, _ in lengths), *query.shape[1:]),
        )
    return run(
        [Piece(before, [0] * new, table) for (before, new), table in zip(lengths, tables, strict=True)],
        [context[:, before:] for context, (before, _) in zip(contexts, lengths, strict=True)],
        query,
    )


def in_layer() -> LayerOrder:
    order = LayerOrder()
    order.next_layer = LAYER
    return order


STEPS: dict[str, Callable[[KVPool, StepBatch], AttentionStep]] = {
    "cpu": lambda pool, batch: CpuAttention(pool, QuantisedRows(pool), batch, in_layer()),
    "tiled": lambda pool, batch: TiledAttention(
        QuantisedRows(pool), batch, in_layer(), GROUP, Heights.agreeing(HEAD_DIM, GROUP, torch.float32)
    ),
    "kernels": lambda pool, batch: KernelAttention(pool, batch, in_layer()),
}
softmaxes = st.builds(
    lambda window, softcap, sinks: Softmax(0.3, window, softcap, torch.linspace(-2, 2, 8) if sinks else None),
    st.none() | st.integers(1, 12),
    st.none() | st.floats(0.5, 5.0),
    st.booleans(),
)
sequences = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 1) | st.integers(1, 9)), min_size=1, max_size=4
)


@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("way", STEPS)
@given(
    lengths=sequences,
    softmax=softmaxes,
    block_size=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 99),
    stored=st.sampled_from(STORED),
)
def test_any_ragged_batch_attends_to_what_was_stored(
    way: str,
    lengths: list[tuple[int, int]],
    softmax: Softmax,
    block_size: int,
    seed: int,
    stored: torch.dtype,
) -> None:
    contexts = quantised_contexts(lengths, seed, stored)
    num_tokens = sum(new for _, new in lengths)
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(num_tokens, NUM_KV_HEADS * GROUP, HEAD_DIM, generator=generator)
    got = run_in_two_steps(lengths, contexts, query, softmax, STEPS[way], block_size, stored)
    begin = 0
    for (_, new), (key, value) in zip(lengths, contexts, strict=True):
        want = attend(query[begin : begin + new].double(), key.double(), value.double(), softmax)
        # Means of values below 5 by scores of up to ten, in float32; a step of 8 bits is 0.02.
        torch.testing.assert_close(got[begin : begin + new].double(), want, rtol=0, atol=1e-4)
        begin += new


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_zoo.build("gemma2", tmp_path_factory.mktemp("gemma2"))


def test_the_proof_of_sameness_holds(directory: Path) -> None:
    models = [
        load_model(directory, torch.float32, CPU, deterministic=True, quantisation=quantisation)
        for quantisation in (Quantisation.NONE, Quantisation.KV8, Quantisation.KVFP8)
    ]
    digests = {check_determinism(ModelRunner(model, KVPool(model.block_layout(4), 160))) for model in models}
    assert len(digests) == 3


# Every key and value is off by up to 1/254 of its row's largest number, or 1/28.
@pytest.mark.parametrize(("stored", "most"), [(torch.int8, 0.02), (torch.float8_e4m3fn, 0.1)], ids=str)
def test_logits_stay_close_and_are_not_the_same(directory: Path, stored: torch.dtype, most: float) -> None:
    model, rng = load_model(directory, torch.float32, CPU), random.Random(4)
    tokens = [rng.randrange(3, model_zoo.VOCAB_SIZE) for _ in range(30)]
    rows = []
    for entry in (model, replace(model, stored=stored)):
        runner = ModelRunner(entry, KVPool(entry.block_layout(4), 12))
        (table,), _ = shuffled_tables([30], 4, 0)
        rows.append(runner.forward(make_batch([Piece(0, tokens, table)], 4)).clone())
    error = float((rows[0] - rows[1]).norm() / rows[0].norm())
    assert 0 < error < most


def test_the_same_memory_holds_more_blocks(directory: Path) -> None:
    plain, *eight = (
        build(
            EngineSettings(
                directory, torch.float32, CPU, 4, None, 1, 2, 8, "chunked", quantisation=quantisation
            ),
            lambda _runner, _name: Sweep([]),
        )
        for quantisation in (Quantisation.NONE, Quantisation.KV8, Quantisation.KVFP8)
    )
    for entry, stored in zip(eight, STORED, strict=True):
        assert entry.runner.pool.layout.stored is stored
        # 16 numbers of a head take 64 bytes, or 16 and a scale.
        assert entry.runner.pool.num_blocks == 1024 * 1024 // (plain.runner.pool.block_bytes * 20 // 64)
        assert entry.runner.pool.num_blocks > 3 * plain.runner.pool.num_blocks
    assert len({entry.fingerprint for entry in (plain, *eight)}) == 3


def test_workers_that_store_otherwise_are_strangers(directory: Path) -> None:
    model = load_model(directory, torch.float32, CPU)
    layouts = [replace(model, stored=stored).block_layout(4) for stored in (None, *STORED)]
    assert len({fingerprint(directory, layout) for layout in layouts}) == 3


def test_a_gpu_without_fp8_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(
        ValueError, match=r"kvfp8 on cuda:0 of compute capability 8\.0; accepted: 8\.9 or higher"
    ):
        load_model(directory, torch.bfloat16, torch.device("cuda:0"), quantisation=Quantisation.INT8_KVFP8)
