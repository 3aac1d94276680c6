"""The kernels that draw tokens compile for Hopper, with and without all that rows may ask for."""

import pytest
import torch

import kernels.sample_rows.kernel as sample_rows
import kernels.top_logits.kernel as top_logits
from kernels.logit_rows.arguments import Edits, Seen, Way
from tests.kernels.compiling import assert_runs_on_hopper, record


@pytest.mark.parametrize(
    ("dtype", "with_everything"),
    [(torch.bfloat16, False), (torch.float16, True), (torch.float32, True)],
    ids=str,
)
def test_sample_rows_compiles(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, with_everything: bool
) -> None:
    scan = record(monkeypatch, sample_rows, "_scan_kernel")
    draw = record(monkeypatch, sample_rows, "_draw_kernel")
    logits, ways = torch.zeros(3, 128256, dtype=dtype), torch.zeros(len(Way), 3, dtype=torch.float64)
    edits = seen = None
    if with_everything:
        offsets = torch.tensor([0, 1, 1, 2], dtype=torch.int32)
        edits = Edits(torch.zeros(2, dtype=torch.int32), torch.zeros(2), offsets)
        seen = Seen(torch.zeros(logits.shape, dtype=torch.bool), torch.zeros(logits.shape, dtype=torch.int32))
    sample_rows.sample_rows(logits, ways, edits, seen, with_log_totals=with_everything)
    assert_runs_on_hopper(scan)
    assert_runs_on_hopper(draw)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_top_logits_compiles(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    top = record(monkeypatch, top_logits, "_top_logits_kernel")
    top_logits.top_logits(torch.zeros(3, 128256, dtype=dtype), 20)
    assert_runs_on_hopper(top)
