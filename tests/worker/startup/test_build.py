"""Lines that a worker logs about the model that it has loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
import torch

from engine.model.model import load_model
from engine.model.quantised.quantisation import Quantisation
from tests.model_zoo import build
from worker.startup.build import _log_quantisation


@pytest.mark.parametrize(("device", "warns"), [("cpu", True), ("cuda", False)])
def test_weights_in_8_bits_are_said_to_be_slow_on_a_cpu(device: str, warns: bool, tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    model = load_model(build("llama", tmp_path), torch.float32, cpu, quantisation=Quantisation.INT8)
    assert model.quantised is not None
    with structlog.testing.capture_logs() as logged:
        _log_quantisation(model.quantised, torch.device(device))
    assert [line["event"] for line in logged] == ["weights_quantised", *(["int8_is_slow"] * warns)]
