"""Draw frames as an SVG that plays by itself: a strip of all frames, of which a window shows one at a time.

It needs no script, so that it plays inside an `img`. Whoever asks for reduced motion sees the last frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from tools.record.frames import Frame
from tools.record.screen import PLAIN, Row, Style

CHAR_WIDTH = 8.4
ROW_HEIGHT = 17
FONT_SIZE = 14
BASELINE = 13
PADDING = 14
BAR_HEIGHT = 30
BACKGROUND, FOREGROUND, BAR, MUTED = "#0d1117", "#e6edf3", "#161b22", "#8b949e"
PALETTE = (
    "#6e7681", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4",
    "#8b949e", "#ffa198", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#f0f6fc",
)  # fmt: skip
CUBE = (0, 95, 135, 175, 215, 255)
"""The levels of red, green and blue in the colours 16 to 231 of a terminal."""


def drawing(frames: Sequence[Frame], columns: int, num_rows: int, title: str, rest_s: float) -> str:
    """Return the SVG; the last frame stays for `rest_s`, then it plays again."""
    width, height = columns * CHAR_WIDTH, num_rows * ROW_HEIGHT
    rows = {
        row: place
        for place, row in enumerate(dict.fromkeys(row for frame in frames for row in frame.rows if row))
    }
    full_width, full_height = width + 2 * PADDING, height + 2 * PADDING + BAR_HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full_width:g} {full_height:g}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_style(frames, height, rest_s)}</style>",
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
        f'<path d="M0 8a8 8 0 0 1 8-8H{full_width - 8:g}a8 8 0 0 1 8 8V{BAR_HEIGHT}H0z" fill="{BAR}"/>',
        *(
            f'<circle cx="{18 + 18 * place}" cy="15" r="5.5" fill="{colour}"/>'
            for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ),
        f'<text x="50%" y="20" text-anchor="middle" fill="{MUTED}">{escape(title)}</text>',
        "<defs>",
        *(f'<text id="r{place}">{"".join(_spans(row))}</text>' for row, place in rows.items()),
        "</defs>",
        f'<svg x="{PADDING}" y="{PADDING + BAR_HEIGHT}" width="{width:g}" height="{height}"><g id="film">',
        *(_frame(frame, rows, place * height) for place, frame in enumerate(frames)),
        "</g></svg>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _style(frames: Sequence[Frame], height: float, rest_s: float) -> str:
    durations = [*(frame.duration_s for frame in frames[:-1]), rest_s]
    whole_s, since_s, stops = sum(durations), 0.0, []
    for place, duration_s in enumerate(durations):
        stops.append(f"{100 * since_s / whole_s:.3f}%{{transform:translateY({-place * height:g}px)}}")
        since_s += duration_s
    last = f"transform:translateY({-(len(frames) - 1) * height:g}px)"
    return (
        f"text{{font:{FONT_SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        f"fill:{FOREGROUND};white-space:pre}}.b{{font-weight:bold}}.d{{opacity:.6}}"
        f"@keyframes film{{{''.join(stops)}to{{{last}}}}}"
        f"#film{{{last};animation:film {whole_s:.2f}s step-end infinite}}"
        "@media(prefers-reduced-motion:reduce){#film{animation:none}}"
    )


def _frame(frame: Frame, rows: dict[Row, int], top: float) -> str:
    uses = (
        f'<use href="#r{rows[row]}" y="{top + place * ROW_HEIGHT:g}"/>'
        for place, row in enumerate(frame.rows)
        if row
    )
    return "".join(uses)


def _spans(row: Row) -> Iterator[str]:
    """Yield the pieces of a row that look alike, each where its columns are, whatever font is at hand."""
    column = 0
    for style, cells in groupby(row, key=lambda cell: cell.style):
        text = "".join(cell.char for cell in cells)
        visible = text.lstrip(" ")
        if visible:
            place = f'x="{(column + len(text) - len(visible)) * CHAR_WIDTH:.4g}" y="{BASELINE}"'
            extent = f'textLength="{len(visible) * CHAR_WIDTH:.4g}" lengthAdjust="spacingAndGlyphs"'
            yield f"<tspan {place} {extent}{_look(style)}>{escape(visible)}</tspan>"
        column += len(text)


def _look(style: Style) -> str:
    if style == PLAIN:
        return ""
    classes = " ".join(name for name, is_set in (("b", style.bold), ("d", style.dim)) if is_set)
    colour = "" if style.colour is None else f' style="fill:{_hex(style.colour)}"'
    return (f' class="{classes}"' if classes else "") + colour


def _hex(colour: int) -> str:
    """Return a colour of the terminal's palette of 256."""
    if colour < len(PALETTE):
        return PALETTE[colour]
    if colour >= 232:
        grey = 8 + 10 * (colour - 232)
        return f"#{grey:02x}{grey:02x}{grey:02x}"
    place = colour - 16
    return f"#{CUBE[place // 36]:02x}{CUBE[place // 6 % 6]:02x}{CUBE[place % 6]:02x}"
