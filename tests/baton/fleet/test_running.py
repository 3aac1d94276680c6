"""A running fleet is found by its launcher, not by what a former one left behind."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.fleet import Fleet, FleetSpec
from baton.fleet.running import (
    Control,
    RunningFleet,
    candidates,
    described,
    fleet_of,
    launcher_answers,
    running_fleets,
)
from baton.security.credentials import UNENCRYPTED, Credentials


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for number in ("2", "10", "9", "secure"):
        (tmp_path / number).mkdir()
    return tmp_path


def test_runs_come_newest_first_by_number(runs: Path) -> None:
    assert candidates(runs) == [runs, runs / "10", runs / "9", runs / "2"]


@contextlib.contextmanager
def launcher(folder: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listening:
        path = folder / "socket"
        listening.bind(str(path))
        listening.listen()
        (folder / "control").write_text(str(path))
        yield


def test_a_launcher_is_alive_while_its_socket_answers(runs: Path) -> None:
    folder = runs / "2"
    assert not launcher_answers(folder)
    with launcher(folder):
        assert launcher_answers(folder)
    assert (folder / "control").exists()  # as after SIGKILL
    assert not launcher_answers(folder)


def test_a_description_is_read_as_it_was_written(runs: Path) -> None:
    keys = [runs / name for name in ("ca.pem", "client.pem", "client.key", "api.key")]
    for key in keys:
        key.write_text("secret")
    shown = Credentials(*keys)
    with launcher(runs / "2"), described(runs / "2", ("127.0.0.1:1", "127.0.0.1:2"), shown):
        (found,) = running_fleets(runs)
        assert (found.run_dir, found.addresses) == (runs / "2", ("127.0.0.1:1", "127.0.0.1:2"))
        assert found.credentials == shown
        assert "secret" not in (runs / "2" / "fleet.json").read_text()
        assert running_fleets(runs / "2") == [found]
        with described(runs / "9", ("127.0.0.1:3",), shown):
            assert running_fleets(runs) == [found]  # nobody listens for the other
            with launcher(runs / "9"):
                assert [fleet.run_dir for fleet in running_fleets(runs)] == [runs / "9", runs / "2"]
    assert not (runs / "2" / "fleet.json").exists()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"pid": 1, "addresses": ["a:1"], "credentials": {"password": "x"}}']
)
def test_a_description_that_is_none_is_named(runs: Path, content: str) -> None:
    (runs / "2" / "fleet.json").write_text(content)
    with pytest.raises(ValueError, match=r"2/fleet\.json does not describe a running fleet"):
        fleet_of(runs / "2")


@pytest.mark.integration
async def test_a_fleet_with_a_control_is_described_while_it_serves(
    make_spec: Callable[..., FleetSpec], tmp_path: Path
) -> None:
    control = Control(lambda event: None)
    run_dir = tmp_path / "run"
    async with Fleet(make_spec(routers=2), control) as fleet:
        assert running_fleets(run_dir) == []
        async with control.serving(fleet):
            (found,) = running_fleets(run_dir)
            assert found == RunningFleet(run_dir, found.pid, fleet.router_addresses, UNENCRYPTED)
        assert running_fleets(run_dir) == []
        assert not (run_dir / "fleet.json").exists()
