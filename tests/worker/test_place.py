"""A process finds its place in a cluster's environment variables, and refuses flags that do not fit."""

from __future__ import annotations

import pytest

from worker.config import WorkerConfig
from worker.place import Place, place_in
from worker.startup.flags import parse_config

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4242"}
PODS = {"LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": "4", "LWS_LEADER_ADDRESS": "group-0.group.serving"}


def place(environment: dict[str, str]) -> Place:
    found = place_in(environment)
    assert found is not None
    return found


def test_a_place_is_found_in_the_variables_of_torchrun() -> None:
    found = place(TORCHRUN | PODS)  # torchrun runs in a pod
    assert (found.rank, found.size, found.address, found.port) == (1, 2, "127.0.0.1", 4242)
    assert found.is_torchrun


def test_a_place_is_found_in_the_variables_of_a_leader_worker_set() -> None:
    found = place(PODS)
    assert (found.rank, found.size, found.address, found.port) == (0, 4, "group-0.group.serving", 29500)
    assert not found.is_torchrun
    assert place(PODS | {"MASTER_PORT": "4000"}).port == 4000


@pytest.mark.parametrize(
    "environment",
    [{}, TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}, PODS | {"LWS_GROUP_SIZE": "1"}, {"MASTER_PORT": "1"}],
)
def test_a_process_that_is_alone_has_no_place(environment: dict[str, str]) -> None:
    assert place_in(environment) is None


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (TORCHRUN | {"RANK": "2"}, "RANK is 2 with WORLD_SIZE 2; accepted: 0 to 1"),
        (TORCHRUN | {"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; accepted: an integer"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "MASTER_ADDR is empty; accepted: the name or address of"),
        (TORCHRUN | {"MASTER_PORT": "0"}, "MASTER_PORT is 0; accepted: 1 to 65535"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set and RANK is not; accepted: all of RANK, WORLD_SIZE, MASTER"),
        (PODS | {"LWS_WORKER_INDEX": "-1"}, "LWS_WORKER_INDEX is -1 with LWS_GROUP_SIZE 4; accepted: 0 to 3"),
        ({"LWS_GROUP_SIZE": "2"}, "LWS_GROUP_SIZE is set and LWS_WORKER_INDEX is not; accepted: all of LWS_"),
    ],
)
def test_variables_that_make_no_place_are_named(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        place_in(environment)


def config(environment: dict[str, str], flags: str, monkeypatch: pytest.MonkeyPatch) -> WorkerConfig:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return parse_config(["--model=m", *flags.split()], "decode", 1)


def test_a_cluster_starts_processes_with_the_threads_of_the_flag_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = config(TORCHRUN, "--tensor-parallel=2 --threads=1", monkeypatch)
    assert found.place == place(TORCHRUN)
    assert found.threads_each == 1


def test_a_worker_of_one_process_does_not_look_at_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config({"RANK": "none"}, "", monkeypatch).place is None


@pytest.mark.parametrize(
    ("address", "flags", "sentence"),
    [
        (
            "127.0.0.1",
            "--tensor-parallel=3",
            "--tensor-parallel 3 with WORLD_SIZE 2; accepted: --tensor-parallel 2",
        ),
        (
            "127.0.0.1",
            "--pipeline-parallel=2",
            "--pipeline-parallel 2 with WORLD_SIZE 2; accepted: --tensor-parallel 2",
        ),
        (
            "10.1.2.3",
            "--tensor-parallel=2",
            "MASTER_ADDR is 10.1.2.3, and the sums of --tensor-parallel 2 travel in the clear, also with",
        ),
    ],
)
def test_flags_that_do_not_fit_several_hosts_are_refused(
    address: str, flags: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=sentence):
        config(TORCHRUN | {"MASTER_ADDR": address}, flags, monkeypatch)


def test_a_trusted_network_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = TORCHRUN | {"MASTER_ADDR": "10.1.2.3"}
    found = config(environment, "--tensor-parallel=2 --insecure-listen", monkeypatch)
    assert found.place == place(environment)
