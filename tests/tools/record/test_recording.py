"""A recording shows what a terminal would show, and keeps the time but for pauses."""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tools.record.drawing import drawing
from tools.record.frames import Frame, frames
from tools.record.screen import Row, Screen, Style
from tools.record.session import Piece, run

SVG = "{http://www.w3.org/2000/svg}"


def shown(screen: Screen) -> list[str]:
    return ["".join(cell.char for cell in row) for row in screen.rows()]


def rows_of(*lines: str) -> tuple[Row, ...]:
    screen = Screen(80, len(lines))
    screen.write("\r\n".join(lines))
    return screen.rows()


def test_lines_scroll_and_returns_overwrite() -> None:
    screen = Screen(10, 2)
    screen.write("one\r\ntwo\r\nthree\rTH")
    assert shown(screen) == ["two", "THree"]


def test_what_is_longer_than_a_row_goes_on_in_the_next() -> None:
    screen = Screen(4, 3)
    screen.write("abcdefgh")
    assert shown(screen) == ["abcd", "efgh", ""]


def test_a_live_table_leaves_its_last_state() -> None:
    """Live tables move the cursor up and erase rows; nothing of an earlier state may stay."""
    output = io.StringIO()
    terminal = {"TERM": "xterm-256color"}
    console = Console(file=output, force_terminal=True, width=40, height=10, _environ=terminal)
    with Live(console=console, auto_refresh=False) as live:
        for count in (3, 1, 2):
            live.update(Text("\n").join([Text(f"row {place}") for place in range(count)]), refresh=True)
    written = output.getvalue().replace("\n", "\r\n")
    screen = Screen(40, 10)
    for place in range(0, len(written), 3):
        screen.write(written[place : place + 3])
    assert [line.rstrip() for line in shown(screen) if line] == ["row 0", "row 1"]


def test_colours_are_kept() -> None:
    screen = Screen(40, 10)
    screen.write("\x1b[1;32mbold green\x1b[0m \x1b[38;5;208morange\x1b[39m \x1b[2mdim")
    styles = {cell.style for row in screen.rows() for cell in row if cell.char != " "}
    assert styles == {Style(2, bold=True), Style(208), Style(dim=True)}


def test_pauses_are_cut_and_nothing_else() -> None:
    pieces = [Piece(0.0, "a"), Piece(0.5, "b"), Piece(9.0, "c"), Piece(9.4, "d")]
    recorded = frames(pieces, Screen(10, 1), least_s=0.1, pause_s=1.0)
    assert [
        ("".join(cell.char for cell in frame.rows[0]), round(frame.duration_s, 9)) for frame in recorded
    ] == [
        ("a", 0.5),
        ("ab", 1.0),
        ("abc", 0.4),
        ("abcd", 0.0),
    ]


def test_a_spinner_alone_is_a_pause() -> None:
    pieces = [Piece(0.2 * turn, f"\r{char} wait") for turn, char in enumerate("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")]
    recorded = frames([*pieces, Piece(2.0, "\rdone  ")], Screen(10, 1), least_s=0.1, pause_s=0.5)
    assert sum(frame.duration_s for frame in recorded) == pytest.approx(0.5)
    assert "".join(cell.char for cell in recorded[-1].rows[0]) == "done"


def test_a_drawing_has_every_row_once_and_every_frame_in_its_time() -> None:
    recorded = [
        Frame(rows_of("$ x", "<a>"), 1.0),
        Frame(rows_of("$ x", "b"), 3.0),
        Frame(rows_of("", "b"), 0.0),
    ]
    text = drawing(recorded, 80, 2, "title", rest_s=4.0)
    root = ET.fromstring(text)
    texts = ["".join(element.itertext()) for element in root.iterfind(f"{SVG}defs/{SVG}text")]
    assert texts == ["$ x", "<a>", "b"]
    assert len(list(root.iter(f"{SVG}use"))) == 5
    stops = re.findall(r"([\d.]+)%\{transform:translateY\((-?[\d.]+)px\)\}", text)
    assert [(float(share), float(top)) for share, top in stops] == [(0, 0), (12.5, -34), (50, -68)]


def test_programs_find_a_terminal_of_the_size_that_is_drawn(tmp_path: Path) -> None:
    pieces = run("test -t 1 && stty size", 77, 11, tmp_path, {"PATH": "/usr/bin:/bin"})
    assert "".join(piece.text for piece in pieces) == "11 77\r\n"


def test_a_program_that_fails_makes_no_recording(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run("exit 3", 80, 24, tmp_path, {})
