"""The native ops equal their references, within the tolerances of the same ops in Triton."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.add_rms_norm import add_rms_norm, add_rms_norm_reference
from kernels.chunked_prefill import chunked_prefill
from kernels.gated_activation import gated_activation, gated_activation_reference
from kernels.native import build, loader
from kernels.native.ops import MAX_GROUP, attends
from kernels.paged_attention.arguments import Softmax
from kernels.paged_decode import paged_decode, paged_decode_reference
from kernels.rope_store_kv import rope_store_kv
from tests.kernels.cases import FEATURES, features, make_case
from tests.kernels.tensors import assert_close, randn, same_bits
from tests.kernels.test_chunked_prefill import BATCH, cu_seqlens, ragged_case
from tests.kernels.test_chunked_prefill import assert_equals_reference as assert_chunks_equal_reference
from tests.kernels.test_gated_activation import near
from tests.kernels.test_paged_decode import LENGTHS, assert_equals_reference
from tests.kernels.test_rope_store_kv import NORMS, assert_near, expected, norms
from tests.kernels.test_rope_store_kv import make_case as make_rope_case

DTYPES = (torch.bfloat16, torch.float32)
can_build = build.compiler() is not None and platform.machine() in build.TARGETS
needs_library = pytest.mark.skipif(not can_build, reason="needs a C compiler, on x86-64 or ARM")
on_each_target = pytest.mark.usefixtures("target")


@needs_library
def test_setup_built_a_library_for_this_processor() -> None:
    assert loader.library() is not None, "make setup builds it; so does python -m kernels.native.build"


@pytest.mark.skipif(not torch.backends.openmp.is_available(), reason="this torch has no threads of OpenMP")
def test_the_threads_of_torch_are_found_where_only_torch_sees_them() -> None:
    """Without them native ops would compute on one thread, and nobody would notice."""
    assert loader.parallel_of(loader.TORCH_LIBRARY)


@on_each_target
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("unit_offset", [False, True], ids=["llama", "gemma"])
@pytest.mark.parametrize("size", [1, 16, 300, 4096])
def test_adds_and_normalises(size: int, unit_offset: bool, dtype: torch.dtype) -> None:
    x, residual = randn(9, size + 3, dtype=dtype)[:, :size], randn(9, size, dtype=dtype, seed=1)
    weight, after = randn(size, dtype=dtype, seed=2), residual.clone()
    got = add_rms_norm(x, after, weight, 1e-5, unit_offset=unit_offset)
    want = add_rms_norm_reference(
        x.double(), residual.double(), weight.double(), 1e-5, unit_offset=unit_offset
    )
    assert same_bits(after, residual + x)
    rounded = add_rms_norm_reference(x, residual, weight, 1e-5, unit_offset=unit_offset)
    assert_close(got, rounded, eps=4)
    assert (got.double() - want).abs().max() <= 4 * torch.finfo(dtype).eps * want.abs().max()


@on_each_target
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh", "gelu"])
@pytest.mark.parametrize("size", [1, 37, 5000])
def test_activates_and_multiplies(size: int, activation: str, dtype: torch.dtype) -> None:
    gate_up = randn(5, 2 * size, dtype=dtype) * 4
    near(gated_activation(gate_up, activation), gated_activation_reference(gate_up, activation))


@on_each_target
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh", "gelu"])
def test_activations_at_the_ends_of_the_range(activation: str) -> None:
    """The exponential is bounded inside; large numbers, zero and NaN come out as from torch."""
    gate = torch.tensor([[0.0, -0.0, 1e-30, -200.0, 200.0, -1e30, 1e30, float("nan")]])
    gate_up = torch.cat((gate, torch.ones_like(gate)), dim=1)
    got, want = gated_activation(gate_up, activation), gated_activation_reference(gate_up, activation)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-30, equal_nan=True)


@on_each_target
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("rotary_dim", [4, 16, 80])
def test_normalises_rotates_and_stores(norm: str, rotary_dim: int, dtype: torch.dtype) -> None:
    case = make_rope_case(head_dim=80, rotary_dim=rotary_dim, dtype=dtype)
    arguments = norms(norm, case)
    want = expected(case, arguments)
    got = rope_store_kv(*case.args(), **arguments)
    assert got.is_contiguous()
    assert_near((got, case.pool), want)


@on_each_target
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decodes_attend(dtype: torch.dtype, feature: str) -> None:
    case = make_case([*LENGTHS, 0], dtype=dtype)
    query, arguments = case.query(len(LENGTHS) + 1, 4), features(feature, 4)
    assert attends(query, case.paged()[0])
    got = paged_decode(query, *case.paged(), **arguments)
    assert torch.equal(got[-1], torch.zeros_like(got[-1]))
    assert_equals_reference(got, query, case, arguments)


@on_each_target
@pytest.mark.parametrize("block_size", [1, 16, 24, 128])
@pytest.mark.parametrize(("head_dim", "group"), [(8, 1), (64, 4), (80, 3), (128, MAX_GROUP), (256, 2)])
def test_decodes_attend_in_every_size(head_dim: int, group: int, block_size: int) -> None:
    case = make_case([1, 33, 190], head_dim=head_dim, block_size=block_size, num_kv_heads=2)
    query, arguments = case.query(3, 2 * group), features("all", 2 * group)
    assert_equals_reference(paged_decode(query, *case.paged(), **arguments), query, case, arguments)


@on_each_target
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chunks_attend(dtype: torch.dtype, feature: str) -> None:
    case, cu = ragged_case([*BATCH, (300, 250), (0, 0)], dtype=dtype)
    query, arguments = case.query(int(cu[-1]), 4), features(feature, 4)
    got = chunked_prefill(query, *case.paged(), cu, **arguments)
    assert_chunks_equal_reference(got, query, case, cu, arguments)


@on_each_target
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 24, 128])
@pytest.mark.parametrize(("head_dim", "group"), [(8, 1), (80, 3), (128, MAX_GROUP), (256, 2), (40, 71)])
def test_chunks_attend_in_every_size(head_dim: int, group: int, block_size: int, dtype: torch.dtype) -> None:
    sizes = {"head_dim": head_dim, "block_size": block_size, "num_kv_heads": 1}
    case, cu = ragged_case([(70, 70), (17, 1), (9, 4)], dtype=dtype, **sizes)
    query, arguments = case.query(75, group), features("all", group)
    got = chunked_prefill(query, *case.paged(), cu, **arguments)
    assert_chunks_equal_reference(got, query, case, cu, arguments)


@needs_library
@given(
    batch=st.lists(st.tuples(st.integers(0, 150), st.integers(0, 150)), min_size=1, max_size=20),
    heads=st.sampled_from([(1, 1), (3, 2), (8, 1), (5, 4)]),
    head_dim=st.sampled_from([8, 20, 64, 96]),
    block_size=st.sampled_from([1, 7, 16]),
    dtype=st.sampled_from(DTYPES),
    feature=st.sampled_from(sorted(FEATURES)),
)
def test_any_batch_attends(
    batch: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    feature: str,
) -> None:
    """Each sequence has a context before its chunk, and a chunk; more than 15 share an item's heads."""
    group, num_kv_heads = heads
    sizes = {"head_dim": head_dim, "block_size": block_size, "num_kv_heads": num_kv_heads}
    case, cu = ragged_case([(before + chunk, chunk) for before, chunk in batch], dtype=dtype, **sizes)
    num_q_heads = group * num_kv_heads
    query, arguments = case.query(int(cu[-1]), num_q_heads), features(feature, num_q_heads)
    got = chunked_prefill(query, *case.paged(), cu, **arguments)
    assert_chunks_equal_reference(got, query, case, cu, arguments)


@on_each_target
@pytest.mark.parametrize("feature", ["plain", "all"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_token_has_its_bits_in_any_chunk(dtype: torch.dtype, feature: str) -> None:
    case, cu = ragged_case([(150, 140), (70, 1), (64, 64)], dtype=dtype)
    query, arguments = case.query(int(cu[-1]), 8), features(feature, 8)
    kv_layer, tables, lens = case.paged()
    together = chunked_prefill(query, kv_layer, tables, lens, cu, **arguments)
    for seq in (0, 2):
        first, end = int(cu[seq]), int(cu[seq + 1])
        for token in range(first, end, 13):
            for size in (1, min(9, end - token)):
                own = slice(token, token + size)
                context = lens[seq : seq + 1] - (end - token - size)
                alone = chunked_prefill(
                    query[own], kv_layer, tables[seq : seq + 1], context, cu_seqlens([size]), **arguments
                )
                assert same_bits(alone, together[own]), (seq, token, size)


@on_each_target
def test_a_row_does_not_depend_on_the_others() -> None:
    case = make_case([5, 70, 130], dtype=torch.bfloat16)
    query, (kv_layer, tables, lens) = case.query(3, 4), case.paged()
    together = paged_decode(query, kv_layer, tables, lens, Softmax(0.3))
    for row in range(3):
        own = slice(row, row + 1)
        assert same_bits(
            paged_decode(query[own], kv_layer, tables[own], lens[own], Softmax(0.3)), together[own]
        )


@on_each_target
def test_a_broken_number_stays_visible() -> None:
    """A NaN in one sequence's query must reach its logits, where it is reported, and no other sequence."""
    case = make_case([5, 70])
    query = case.query(2, 4).clone()
    query[1, 0, 3] = torch.nan
    got = paged_decode(query, *case.paged(), Softmax(0.3))
    assert got[1, 0].isnan().all()
    assert not got[0].isnan().any()


def test_other_dtypes_are_computed_by_the_reference() -> None:
    x, weight = randn(3, 16, dtype=torch.float16), randn(16, dtype=torch.float16)
    assert same_bits(add_rms_norm(x, None, weight, 1e-5), add_rms_norm_reference(x, None, weight, 1e-5))


def test_without_a_library_the_reference_computes(without_native: None) -> None:
    case = make_case([5, 70])
    query = case.query(2, 4)
    got = paged_decode(query, *case.paged(), Softmax(0.3))
    assert same_bits(got, paged_decode_reference(query, *case.paged(), Softmax(0.3)))


@pytest.fixture
def few_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let builds compile a source with all that a loader asks of a library: all ops take 8 s a library."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "entry.c").write_text(
        "const char *baton_source_digest(void) { return SOURCE_DIGEST; }\n"
        "int baton_prepare(void) { return 1; }\n"
    )
    loader.library()  # is found by its own sources, and kept
    monkeypatch.setattr(build, "SOURCE", source)
    return source


@needs_library
def test_a_build_replaces_libraries_as_a_whole(few_sources: Path, tmp_path: Path) -> None:
    command, built = build.compiler(), tmp_path / "built"
    assert command is not None
    built.mkdir()
    older = build.library_path(build.targets()[-1], built)
    older.write_text("an older library")
    with older.open() as read_by_a_worker:
        made = build.build(command, built)
        assert read_by_a_worker.read() == "an older library"
    assert older in made
    assert older.read_bytes().startswith(b"\x7fELF")
    assert sorted(built.iterdir()) == sorted(made)


@needs_library
def test_a_library_of_other_sources_is_not_used(few_sources: Path, tmp_path: Path) -> None:
    command, native = build.compiler(), loader.library()
    assert command is not None
    assert native is not None
    built = tmp_path / "built"
    build.build(command, built)
    assert loader.load(native.target, built) is not None
    with (few_sources / "entry.c").open("a") as entry:
        entry.write("int what_a_new_version_has(void) { return 1; }\n")
    assert loader.load(native.target, built) is None


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho no such option >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        build.build(str(broken), tmp_path / "built")
    assert "no such option" in caught.value.stderr
    assert not list((tmp_path / "built").glob("*.so"))


def test_a_set_up_goes_on_without_a_compiler(tmp_path: Path) -> None:
    """Missing, or too old for a processor it has to compile for: the output says what follows."""
    script = (
        "import sys; from pathlib import Path; from kernels.native import build;"
        "build.SOURCE = Path(sys.argv.pop()); build.main()"  # sources of which nothing is built
    )
    command = [sys.executable, "-c", script, str(tmp_path / "missing-cc"), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "missing-cc cannot be run" in run.stdout
    assert "workers on a CPU compute in PyTorch alone" in run.stdout


@needs_library
@pytest.mark.skipif(platform.machine() != "x86_64", reason="torch distinguishes these on x86-64")
@pytest.mark.parametrize(("limit", "target"), [("avx2", "avx2"), ("default", "x86-64")])
def test_a_processor_without_wide_vectors_gets_a_library_of_its_own(limit: str, target: str) -> None:
    script = "from kernels.native import loader; print(loader.library().target.name)"
    environment = os.environ | {"ATEN_CPU_CAPABILITY": limit}
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment
    )
    assert loaded.stdout.strip() == target


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("flags\t\t: fpu avx f16c fma abm bmi1 avx2 bmi2", "avx2"),
        ("flags : fma abm f16c bmi1 avx2 bmi2 avx512f avx512dq avx512cd avx512bw avx512vl", "avx512"),
        ("flags : fpu sse2", "x86-64"),
        ("vendor : unknown", "x86-64"),
    ],
)
def test_the_library_of_a_machine_is_found_without_torch(cpuinfo: str, name: str) -> None:
    text = f"processor\t: 0\n{cpuinfo}\nbugs\t: none\n"
    assert build.of_processor(build.TARGETS["x86_64"], text)[0].name == name


@needs_library
def test_this_machine_is_found_as_torch_finds_it() -> None:
    native = loader.library()
    assert native is not None
    assert build.of_processor(build.targets(), Path("/proc/cpuinfo").read_text())[0] == native.target


@needs_library
def test_an_older_compiler_builds_the_best_that_it_knows(few_sources: Path, tmp_path: Path) -> None:
    newer, older = build.targets()[-2:]
    compiler = tmp_path / "older-cc"
    refused = f'case "$*" in *{newer.options[0]}*) echo unknown option >&2; exit 1;; esac'
    compiler.write_text(f'#!/bin/sh\n{refused}\nexec {build.compiler()} "$@"\n')
    compiler.chmod(0o755)
    built = tmp_path / "built"
    assert build.build_best(str(compiler), (newer, older), built) == [build.library_path(older, built)]


@needs_library
def test_only_what_is_missing_is_built(few_sources: Path, tmp_path: Path) -> None:
    command, (first, last) = build.compiler(), build.targets()[-2:]
    assert command is not None
    (one,) = build.build(command, tmp_path, (last,))
    made_at = one.stat().st_mtime_ns
    assert len(build.build(command, tmp_path, (first, last))) == 2
    assert one.stat().st_mtime_ns == made_at


@pytest.mark.parametrize(
    ("features", "names"),
    [
        ({"neon", "fp16_arith", "dot"}, ["armv8"]),
        ({"neon", "fp16_arith", "dot", "i8mm", "bf16", "sve", "sve_bf16"}, ["armv8-bf16", "armv8"]),
    ],
    ids=["neoverse n1", "neoverse v1"],
)
@pytest.mark.parametrize("capability", ["DEFAULT", "SVE256"])
def test_an_arm_gets_the_library_with_its_products(
    capability: str, features: set[str], names: list[str]
) -> None:
    usable = loader.of_capability(build.TARGETS["aarch64"], capability)
    assert [target.name for target in usable if target.features <= features] == names
