"""A worker for CPUs runs where Triton is not installed."""

import subprocess
import sys

import pytest

HIDE_TRITON = """
import sys
class NoTriton:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError("No module named 'triton'", name="triton")
sys.meta_path.insert(0, NoTriton())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else find_spec(name, *rest)
"""

RUN_A_CPU_OP = """
import torch
from kernels.add_rms_norm import add_rms_norm, add_rms_norm_reference
import engine.execution.model_runner, engine.sampling.sampler
import kernels.native.loader
kernels.native.loader.library = lambda: None
x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
expected = add_rms_norm_reference(x.clone(), residual.clone(), weight, 1e-6)
assert torch.equal(add_rms_norm(x.clone(), residual.clone(), weight, 1e-6), expected)
"""

ASK_FOR_A_GPU = """
import torch
from kernels.launch import can_launch
try:
    can_launch(None, torch.device("cuda"))
except RuntimeError as error:
    assert "triton" in str(error)
else:
    raise AssertionError("not refused")
"""


@pytest.mark.parametrize("script", [RUN_A_CPU_OP, ASK_FOR_A_GPU])
def test_cpu_ops_run_without_triton(script: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", HIDE_TRITON + script], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_cpu_ops_run_with_triton_that_nothing_else_has_loaded() -> None:
    """A part of Triton that only other imports bring along must not be needed."""
    run = subprocess.run([sys.executable, "-c", RUN_A_CPU_OP], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
