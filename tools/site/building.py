"""The site's files: HTML by Zensical, each page as Markdown, and an index of them for language models."""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import groupby
from pathlib import Path

from tools.house.source_tree import ROOT
from tools.site.pages import FILES, Page, Site

SETTINGS = Path(__file__).with_name("zensical.toml")
STYLE = Path(__file__).with_name("style.css")


def build(site: Site, zensical: Path, folder: Path) -> Path:
    """Build the site anew in a folder, and return the folder in it that is to be served.

    Raises `CalledProcessError` if Zensical fails or finds a link that leads nowhere; it has said where.
    """
    shutil.rmtree(folder, ignore_errors=True)
    source, served = folder / "source", folder / "html"
    for page in site.pages:
        _write(source / page.place, page.text)
    for file in site.files:
        _copy(ROOT / file, source / FILES / file)
    _copy(STYLE, source / STYLE.name)
    settings = SETTINGS.read_text(encoding="utf-8")
    _write(folder / SETTINGS.name, settings.replace("nav = []", f"nav = {navigation(site)}"))
    subprocess.run([zensical, "build", "--strict", "--config-file", folder / SETTINGS.name], check=True)
    for page in site.pages:
        _write(served / page.place, page.text)
    _write(served / "llms.txt", index(site))
    return served


def navigation(site: Site) -> str:
    """Return the navigation as an array of TOML."""
    sections = []
    for title, pages in groupby(site.pages, lambda page: page.section):
        entries = ", ".join(f"{{ {json.dumps(page.title)} = {json.dumps(page.place)} }}" for page in pages)
        sections.append(f"  {{ {json.dumps(title)} = [{entries}] }},\n")
    return "[\n" + "".join(sections) + "]"


def index(site: Site) -> str:
    """Return llms.txt: what Baton is, and every page as Markdown with its first sentence."""
    parts = [f"# Baton\n\n> {site.pages[0].summary}\n"]
    for title, pages in groupby(site.pages, lambda page: page.section):
        parts.append(f"\n## {title}\n\n" + "".join(map(_entry, pages)))
    return "".join(parts)


def _entry(page: Page) -> str:
    return f"- [{page.title}]({page.place}): {page.summary}\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, to)
