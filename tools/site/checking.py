"""Problems of a site that was built: links that lead nowhere, and what is loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED_BY = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}
_OF_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?(https?:)?//")


@dataclass
class _Document(HTMLParser):
    """The anchors of a page, what it links to and what it loads."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif _LOADED_BY.get(tag, "") in values:
            self.loaded.append(values[_LOADED_BY[tag]])


def problems(served: Path) -> list[str]:
    """Return a line for each problem of the files that are served."""
    pages = {path: _read(path) for path in served.rglob("*.html")}
    lines = [
        f"{page.relative_to(served)}: {words}" for page in pages for words in _problems(page, pages, served)
    ]
    lines += [
        f"{path.relative_to(served)} loads from elsewhere"
        for path in served.rglob("*.css")
        if _OF_STYLES.search(path.read_text(encoding="utf-8"))
    ]
    return sorted(lines)


def _problems(page: Path, pages: dict[Path, _Document], served: Path) -> Iterator[str]:
    for link in pages[page].loaded:
        if urlsplit(link).netloc:
            yield f"loads {link} from elsewhere"
    for link in pages[page].links + pages[page].loaded:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        path = unquote(parts.path)
        # The page for addresses that do not exist is served at any of them, so its links begin with a slash.
        target = served / path[1:] if path.startswith("/") else page.parent / path if path else page
        target = (target / "index.html" if target.is_dir() else target).resolve()
        if not target.exists():
            yield f"{link} leads nowhere"
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
            yield f"{link} leads to no heading"


def _read(path: Path) -> _Document:
    document = _Document()
    document.feed(path.read_text(encoding="utf-8"))
    return document
