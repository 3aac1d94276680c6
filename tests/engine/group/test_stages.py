"""Stages of a pipeline compute together what one process computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.model.allow_list import read_config
from engine.model.parallel.stage import Stage, check_layers
from engine.model.quantised.quantisation import Quantisation
from tests import model_zoo
from tests.engine.group.test_equality import assert_equal
from tests.engine.group_driver import staged, whole


@pytest.mark.parametrize("name", model_zoo.CASES)
def test_two_stages_compute_what_one_process_does(name: str, zoo: Callable[[str], Path]) -> None:
    with staged(zoo(name), torch.float64, 2) as stages:
        # The same operations in the same order: the same bits.
        assert_equal(stages, whole(zoo(name), torch.float64), 0.0)


@pytest.mark.parametrize("name", ["llama_tied", "gemma3_text", "gpt2", "opt"])
def test_three_unequal_stages_compute_what_one_process_does(name: str, zoo: Callable[[str], Path]) -> None:
    with staged(zoo(name), torch.float64, 3) as stages:
        assert_equal(stages, whole(zoo(name), torch.float64), 0.0)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.5)], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize("name", ["llama", "llama_tied", "phi3", "gemma2", "granite", "mixtral", "gpt_oss"])
def test_fused_layers_of_stages_compute_what_those_of_one_process_do(
    name: str, dtype: torch.dtype, tolerance: float, zoo: Callable[[str], Path]
) -> None:
    with staged(zoo(name), dtype, 2, fused=True) as stages:
        one = whole(zoo(name), dtype, fused=True)
        assert stages.model.fusion.is_native == one.model.fusion.is_native
        assert_equal(stages, one, tolerance)


@pytest.mark.parametrize("quantisation", [Quantisation.INT8, Quantisation.INT8_KV8, Quantisation.KVFP8])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_weights_and_kv_in_8_bits_are_those_of_one_process(
    name: str, quantisation: Quantisation, zoo: Callable[[str], Path]
) -> None:
    with staged(zoo(name), torch.float32, 2, fused=True, quantisation=quantisation) as stages:
        one = whole(zoo(name), torch.float32, fused=True, quantisation=quantisation)
        assert_equal(stages, one, 1e-4)


@pytest.mark.parametrize("name", model_zoo.CASES)
def test_stages_of_two_parts_compute_what_one_process_does(name: str, zoo: Callable[[str], Path]) -> None:
    # The norm over OLMo 2's heads is in float32, and two parts of it are added in another order than all.
    tolerance = 1e-4 if name == "olmo2" else 1e-9
    with staged(zoo(name), torch.float64, 2, num_parts=2) as stages:
        assert_equal(stages, whole(zoo(name), torch.float64), tolerance)


def test_three_stages_of_two_parts_compute_the_same(zoo: Callable[[str], Path]) -> None:
    with staged(zoo("gpt2"), torch.float64, 3, num_parts=2) as stages:
        assert_equal(stages, whole(zoo("gpt2"), torch.float64), 1e-9)


@pytest.mark.parametrize(
    ("name", "quantisation"), [("gpt_oss", Quantisation.NONE), ("llama", Quantisation.INT8_KV8)]
)
def test_fused_parts_of_stages_compute_what_one_process_does(
    name: str, quantisation: Quantisation, zoo: Callable[[str], Path]
) -> None:
    options: dict[str, Any] = {"fused": True, "quantisation": quantisation}
    with staged(zoo(name), torch.float32, 2, num_parts=2, **options) as stages:
        one = whole(zoo(name), torch.float32, **options)
        assert stages.model.fusion.is_native == one.model.fusion.is_native
        # A key or value near the middle between two steps of 8 bits may be rounded to either.
        assert_equal(stages, one, 1e-4 if quantisation is Quantisation.NONE else 0.1)


def test_parts_of_stages_meet_without_native_ops(zoo: Callable[[str], Path], without_native: None) -> None:
    with staged(zoo("llama"), torch.float64, 2, num_parts=2) as stages:
        assert_equal(stages, whole(zoo("llama"), torch.float64), 1e-9)


def test_stages_keep_their_own_weights_only(zoo: Callable[[str], Path]) -> None:
    with staged(zoo("llama"), torch.float64, 2) as stages:
        names = {name for name, _ in stages.model.module.named_parameters()}
    assert any("layers.1." in name for name in names)
    assert not any("layers.2." in name or "lm_head" in name for name in names)


@pytest.mark.parametrize(
    ("num_layers", "size", "shares"),
    [(12, 2, [6, 6]), (7, 3, [3, 2, 2]), (4, 4, [1, 1, 1, 1]), (80, 3, [27, 27, 26])],
)
def test_shares_are_consecutive_and_differ_by_one_layer(
    num_layers: int, size: int, shares: list[int]
) -> None:
    found = [Stage(rank, size).share(num_layers) for rank in range(size)]
    assert [each.stop - each.start for each in found] == shares
    assert [each.start for each in found[1:]] == [each.stop for each in found[:-1]]
    assert (found[0].start, found[-1].stop) == (0, num_layers)


@pytest.mark.parametrize(("name", "num_layers"), [("llama", 4), ("gpt2", 4)])
def test_more_stages_than_layers_are_refused(
    name: str, num_layers: int, tmp_path: Path, zoo: Callable[[str], Path]
) -> None:
    config = read_config(zoo(name))
    check_layers(config, num_layers)
    expected = f"--pipeline-parallel is 5; accepted: 1 to {num_layers}, as the model has {num_layers} layers"
    with pytest.raises(ValueError, match=expected):
        check_layers(config, 5)
