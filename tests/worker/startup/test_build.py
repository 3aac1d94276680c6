"""Lines that a worker logs about the model that it has loaded."""

from __future__ import annotations

from pathlib import Path

import structlog
import torch

from engine.model.model import load_model
from engine.model.quantised.quantisation import Quantisation
from tests.model_zoo import build
from worker.startup.build import _log_quantisation


def test_what_weights_of_8_bits_save_is_logged(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    model = load_model(build("llama", tmp_path), torch.float32, cpu, quantisation=Quantisation.INT8)
    assert model.quantised is not None
    with structlog.testing.capture_logs() as logged:
        _log_quantisation(model.quantised)
    (line,) = logged
    assert (line["event"], line["layers"]) == ("weights_quantised", 4 * 7)
    assert line["mb"] < line["float_mb"]
