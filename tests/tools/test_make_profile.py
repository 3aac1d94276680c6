from __future__ import annotations

from pathlib import Path

import pytest

from runtime.profiles import load_profile
from tools import make_profile


def test_this_machine_becomes_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "here.json"
    monkeypatch.setattr(make_profile, "NUM_ACTS", 2)
    flags = ["--model=demo_model", "--threads=1", "--max-num-seqs=8"]
    monkeypatch.setattr("sys.argv", ["make_profile", "--name=here", f"--out={path}", *flags])
    make_profile.main()
    profile = load_profile(str(path))
    assert (profile.name, profile.model_name, profile.max_num_seqs) == ("here", "demo_model", 8)
    assert any(profile.cost.coefficients)
