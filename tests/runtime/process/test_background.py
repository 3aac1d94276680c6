"""Files that are written in the background are for their owner alone."""

from __future__ import annotations

import os
import select
import stat
import threading
from pathlib import Path

import pytest

from runtime.process import log
from runtime.process.log import BackgroundWriter, open_unblocked
from tests.patience import PATIENCE_S


def test_what_is_written_over_an_older_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    path.write_text("older")
    path.chmod(0o644)
    os.close(open_unblocked(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.read_bytes()


def test_a_device_may_be_written_to() -> None:
    device = Path(os.devnull)
    mode = device.stat().st_mode
    os.close(open_unblocked(device))
    assert device.stat().st_mode == mode


def test_texts_of_a_burst_are_written_together_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "GATHER_S", PATIENCE_S)
    written: list[bytes] = []
    first = threading.Event()

    def write_all(_fd: int, data: bytes) -> None:
        written.append(data)
        first.set()

    monkeypatch.setattr(log, "_write_all", write_all)
    with (tmp_path / "log").open("wb") as file:
        writer = BackgroundWriter(file.fileno(), 4000, lambda _: None)
        assert writer.write("0")
        assert first.wait(PATIENCE_S), "nothing waits for more to come while there is little"
        for place in range(1, 10):
            assert writer.write(str(place))
        assert writer.flush(PATIENCE_S)
        assert written == [b"0", b"123456789"]
        first.clear()
        for _ in range(3):
            assert writer.write("x" * 1000)
        assert first.wait(PATIENCE_S), "much is written at once, too"
        assert writer.close(PATIENCE_S)
    assert b"".join(written[2:]) == b"x" * 3000


def test_no_piece_is_longer_than_a_pipe_takes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(log, "_write_all", lambda _fd, data: written.append(data))
    with (tmp_path / "log").open("wb") as file:
        writer = BackgroundWriter(file.fileno(), 1 << 20, lambda _: None)
        lines = [f"{place:04}" * 300 + "\n" for place in range(50)]
        for line in [*lines, "x" * 9000]:
            assert writer.write(line)
        assert writer.close(PATIENCE_S)
    assert b"".join(written).decode() == "".join(lines) + "x" * 9000
    assert sorted(map(len, written))[-2] <= select.PIPE_BUF
