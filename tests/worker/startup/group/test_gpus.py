"""Each process of a worker on GPUs sees one of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.startup.group.gpus import INTERFACE, VISIBLE, check_number, gpus_for, stay_on_host, take_local


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """The folder of a machine with three GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("device", "visible", "gpus"),
    [
        ("cpu", None, ()),
        ("auto", None, ("0", "1", "2")),
        ("cuda", None, ("0", "1", "2")),
        ("auto", "2,0", ("2", "0")),
        ("auto", "GPU-1, MIG-2", ("GPU-1", "MIG-2")),
        ("auto", "1,-1,2", ("1",)),
        ("auto", "", ()),
    ],
)
def test_the_gpus_are_those_that_cuda_shows(
    device: str, visible: str | None, gpus: tuple[str, ...], devices: Path
) -> None:
    assert gpus_for(device, {} if visible is None else {VISIBLE: visible}, devices) == gpus


def test_there_are_none_without_a_driver(tmp_path: Path) -> None:
    assert gpus_for("auto", {VISIBLE: "0,1"}, tmp_path) == ()


def test_more_processes_than_gpus_are_refused() -> None:
    check_number((), 8)
    check_number(("0", "1"), 2)
    with pytest.raises(
        ValueError, match="--tensor-parallel is 3, one GPU for each process, and CUDA shows 2; a"
    ):
        check_number(("0", "1"), 3)


def test_a_process_of_torchrun_takes_the_gpu_of_its_rank() -> None:
    environment = {"LOCAL_RANK": "1"}
    take_local(("0", "3"), environment)
    assert environment[VISIBLE] == "3"
    with pytest.raises(
        ValueError, match="LOCAL_RANK is 2, the number of a GPU, and CUDA shows 2; accepted: 0 t"
    ):
        take_local(("0", "3"), {"LOCAL_RANK": "2"})


def test_nccl_stays_on_the_host_unless_told_otherwise() -> None:
    environment: dict[str, str] = {}
    stay_on_host(environment)
    assert environment == {INTERFACE: "lo"}
    environment = {INTERFACE: "eth0"}
    stay_on_host(environment)
    assert environment == {INTERFACE: "eth0"}
