"""`baton key` and `baton certs` make new files; what is there already is somebody's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton.cli.program import main
from baton.security.secret_files import replace_secret


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_key_takes_no_files_place_and_opens_nothing_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    door, out = tmp_path / "door.json", tmp_path / "api.key"
    assert main(["key", str(door), "acme", "--out", str(out)]) == 0
    before = files(tmp_path)
    for taken in (out, door):
        assert main(["key", str(door), "acme", "--out", str(taken)]) == 2
        assert f"baton: {taken} exists already; name a new file" in capsys.readouterr().err
    assert files(tmp_path) == before


@pytest.mark.parametrize("folder", ["nowhere", "door.json"])
def test_a_key_that_cannot_be_kept_opens_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    door = tmp_path / "door.json"
    door.write_text("{}")
    assert main(["key", str(door), "acme", "--out", str(tmp_path / folder / "api.key")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert files(tmp_path) == {"door.json": b"{}"}


def test_a_key_without_its_door_is_not_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    door = tmp_path / "door.json"
    door.write_text("no JSON")
    assert main(["key", str(door), "acme", "--out", str(tmp_path / "api.key")]) == 2
    assert "is not a file for --door" in capsys.readouterr().err
    assert set(files(tmp_path)) == {"door.json"}


@pytest.mark.parametrize("gone", [("ca.key",), ("ca.key", "ca.pem")])
def test_a_new_ca_takes_no_others_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gone: tuple[str, ...]
) -> None:
    assert main(["certs", str(tmp_path)]) == 0
    for name in gone:  # kept elsewhere, as is advised
        (tmp_path / name).unlink()
    before = files(tmp_path)
    assert main(["certs", str(tmp_path)]) == 2
    assert ".pem exists, but ca.key is missing" in capsys.readouterr().err
    assert files(tmp_path) == before


def test_auth_json_is_replaced_whole_whatever_a_former_try_left(tmp_path: Path) -> None:
    door = tmp_path / "door.json"
    (tmp_path / "door.json.new").write_text("half of")
    replace_secret(door, b"{}")
    replace_secret(door, b'{"keys": []}')
    assert json.loads(door.read_text()) == {"keys": []}
    assert set(files(tmp_path)) == {"door.json"}
    assert door.stat().st_mode & 0o777 == 0o600
