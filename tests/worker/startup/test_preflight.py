"""A worker checks its surroundings before it says that it serves."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.state.records import WorkerRecord
from worker.errors import EXIT_CONFIG, EXIT_FLEET, ForeignFleetError, ForeignKernelsError
from worker.process.command import (
    LARGE_PAGES,
    WAIT_SETTINGS,
    check_kernels,
    shorten_waits,
    use_large_pages,
)
from worker.process.registration import check_fleet

OWN = WorkerRecord("decode-1", "inc", "decode", "h:1", "fp", "model", 16, 100)


def test_threads_of_torch_spin_for_a_short_time() -> None:
    """Torch's OpenMP runtime reads its settings as it is loaded, and can be asked which it took."""
    script = (
        "import os, sys; from worker.process.command import shorten_waits; "
        "assert 'torch' not in sys.modules; shorten_waits(os.environ); import torch"
    )
    unset = {name: value for name, value in os.environ.items() if name not in WAIT_SETTINGS}
    shown = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env=unset | {"OMP_DISPLAY_ENV": "verbose"},
    )
    assert "GOMP_SPINCOUNT = '10000'" in shown.stderr


def test_an_environment_that_says_how_threads_wait_is_left_alone() -> None:
    environment = {"GOMP_SPINCOUNT": "100"}
    shorten_waits(environment)
    assert environment == {"GOMP_SPINCOUNT": "100"}


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has no large pages"
)
def test_large_tensors_ask_for_large_pages() -> None:
    """The system shows it as the flag `hg` of the memory that a tensor lies in."""
    script = """
import os, re
from worker.process.command import use_large_pages
use_large_pages(os.environ)
import torch
tensor = torch.zeros(16 << 20)  # of four bytes each
place = tensor.data_ptr() + (32 << 20)
flags, inside = "", False
for line in open("/proc/self/smaps"):
    found = re.match("([0-9a-f]+)-([0-9a-f]+) ", line)
    if found:
        inside = int(found[1], 16) <= place < int(found[2], 16)
    elif inside and line.startswith("VmFlags:"):
        flags = line
print("hg" in flags.split())
"""
    unset = {name: value for name, value in os.environ.items() if name != LARGE_PAGES}
    shown = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=unset
    )
    assert shown.stdout.strip() == "True"


def test_an_environment_that_refuses_large_pages_is_left_alone() -> None:
    environment = {LARGE_PAGES: "0"}
    use_large_pages(environment)
    assert environment == {LARGE_PAGES: "0"}


def test_another_package_called_kernels_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = tmp_path / "hf_kernels-1.0.dist-info"
    for folder in (tmp_path / "kernels", described):
        folder.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: hf-kernels\nVersion: 1.0\n")
    (described / "top_level.txt").write_text("kernels\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ForeignKernelsError, match="pip uninstall hf-kernels") as refused:
        check_kernels()
    assert refused.value.exit_code == EXIT_CONFIG


def test_the_environment_of_these_tests_is_fine() -> None:
    check_kernels()


@pytest.mark.parametrize(
    ("field", "value"), [("block_size", 32), ("fingerprint", "other"), ("sameness", "other bits")]
)
def test_a_fleet_that_serves_something_else_is_not_joined(field: str, value: object) -> None:
    other = dataclasses.replace(OWN, worker_id="prefill-1", **{field: value})  # type: ignore[arg-type]
    with pytest.raises(ForeignFleetError, match="prefill-1") as refused:
        check_fleet(OWN, [OWN, other])
    assert str(getattr(OWN, field) or "off") in str(refused.value)
    assert str(value) in str(refused.value)
    assert refused.value.exit_code == EXIT_FLEET


def test_an_adapter_s_name_stands_for_the_same_weights_everywhere() -> None:
    own = dataclasses.replace(OWN, adapters={"red": "1" * 32, "blue": "2" * 32})
    others = dataclasses.replace(OWN, worker_id="prefill-1", adapters={"blue": "2" * 32, "green": "3" * 32})
    check_fleet(own, [others])
    changed = dataclasses.replace(others, adapters={"red": "4" * 32})
    with pytest.raises(ForeignFleetError, match=f"--lora red .* is {'1' * 32}; the fleet's worker prefill-1"):
        check_fleet(own, [changed])


def test_a_former_process_of_the_same_worker_is_no_obstacle() -> None:
    check_fleet(OWN, [dataclasses.replace(OWN, incarnation="former", block_size=8, fingerprint="old")])
