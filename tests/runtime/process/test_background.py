"""Files that are written in the background are for their owner alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from runtime.process.background import open_unblocked


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
