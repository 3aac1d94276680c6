"""The benchmark of a GPU, tried on a CPU: its arithmetic against known figures, and the whole of it once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.anchors import VLLM_DECODE_MS, VLLM_OVER_FLOOR
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.floors import Ceilings, decode_step_s, prefill_s, steady_rate
from benchmarks.gpu.offline import covered, longest_kernels
from benchmarks.gpu.sizes import LLAMA_8B
from sim.reporting.section import Section

H200 = Ceilings(read=4.48e12, copy=4.28e12, matrix=787e12, to_host=55e9, from_host=55e9)
MODEL = LLAMA_8B.model


def test_the_model_is_the_one_that_others_were_measured_with() -> None:
    assert MODEL.weights == pytest.approx(7.5e9, rel=0.01)
    assert MODEL.kv_bytes_per_token == 131072


@pytest.mark.parametrize("batch", VLLM_DECODE_MS)
def test_floors_are_those_that_others_were_compared_with(batch: int) -> None:
    floor_ms = decode_step_s(MODEL, H200, batch, context=1092) * 1e3
    assert VLLM_DECODE_MS[batch] / floor_ms == pytest.approx(VLLM_OVER_FLOOR[batch], rel=0.025)


def test_a_rate_that_a_device_carries_is_limited_by_both_of_its_works() -> None:
    prefill = prefill_s(MODEL, H200, 2500)
    rate = steady_rate(MODEL, H200, 2500, 480, prefill, 0.03)
    assert 1.0 < rate < 1.0 / prefill
    left = 1.0 - rate * prefill
    assert decode_step_s(MODEL, H200, rate * 480 * 0.03, 2740) == pytest.approx(0.03 * left, rel=1e-6)
    assert steady_rate(MODEL, H200, 2500, 480, prefill, 0.05) > rate


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=20))
def test_what_overlaps_counts_once(pairs: list[tuple[int, int]]) -> None:
    spans = [(begin, begin + length) for begin, length in pairs]
    assert covered(spans) == len({tick for begin, end in spans for tick in range(begin, end)})


def test_kernels_are_listed_by_their_short_names() -> None:
    seconds = {"_paged_decode_kernel": 2.775e-3, "void at::reduce<512, float>(int)": 4e-5}
    assert longest_kernels(seconds) == "_paged_decode_kernel 2775, void at::reduce 40"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked_services")
def test_all_of_it_runs_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tmp_path / "found.json"
    offered = ["--rates", "3", "--rate-s", "1.5"]
    assert command.main(["--device", "cpu", "--sizes", "tiny", *offered, "--json", str(found)]) == 0
    sections = json.loads(found.read_text())["sections"]
    assert list(sections["fleet"]["fleet"]) == ["3"]
    assert {name: section["status"] for name, section in sections.items()} == {
        name: "not measured" if name == "busy" else "measured" for name in command.SECTIONS
    }
    assert "Not compared with published figures" in capsys.readouterr().out


def test_a_section_that_fails_does_not_stop_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(bench: Bench) -> Section:
        raise RuntimeError("no kernel image")

    monkeypatch.setitem(command.SECTIONS, "correctness", fail)
    found = tmp_path / "found.json"
    chosen = ["--device", "cpu", "--sections", "correctness,ceilings,prefill"]
    assert command.main([*chosen, "--json", str(found)]) == command.FAILED
    sections = json.loads(found.read_text())["sections"]
    assert sections["correctness"]["reason"] == "RuntimeError: no kernel image"
    assert [section["status"] for section in sections.values()] == ["measured", "failed", "measured"]


def test_floors_need_ceilings(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--device", "cpu", "--sections", "decode"]) == 0
    assert "not measured: its floors need the section `ceilings`" in capsys.readouterr().out


def test_an_unknown_section_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--device", "cpu", "--sections", "decode,prefil"]) == command.WRONG
    assert "--sections is decode,prefil; accepted: of ceilings," in capsys.readouterr().err
