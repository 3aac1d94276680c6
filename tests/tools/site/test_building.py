"""The site as it is built: whole, without links that lead nowhere, and with nothing from elsewhere."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tools.site.__main__ import ZENSICAL
from tools.site.building import build
from tools.site.checking import problems
from tools.site.pages import Page, Site, read_site

pytestmark = pytest.mark.site
SITE = read_site()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(SITE, ZENSICAL, tmp_path_factory.mktemp("site"))


def test_nothing_leads_nowhere_or_comes_from_elsewhere(served: Path) -> None:
    assert problems(served) == []


def test_each_page_is_html_and_markdown_at_one_address(served: Path) -> None:
    for page in SITE.pages:
        path = served / page.place
        assert path.read_text(encoding="utf-8") == page.text
        assert "<article" in path.with_suffix(".html").read_text(encoding="utf-8")


def test_blocks_of_commands_say_which_test_runs_them(served: Path) -> None:
    html = (served / "index.html").read_text(encoding="utf-8")
    assert "Run by tests/docs/test_start_page.py" in html
    assert "Not run by a test" in html


def test_the_search_finds_words_of_every_page(served: Path) -> None:
    (found,) = served.rglob("search.json")
    locations = {item["location"].partition("#")[0] for item in json.loads(found.read_text())["items"]}
    assert {page.place.replace(".md", ".html") for page in SITE.pages} - {"index.html"} <= locations


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    page = Page("Start", "index.md", "# Title\n\n[somewhere](nowhere.md)\n")
    with pytest.raises(subprocess.CalledProcessError):
        build(Site((page,), frozenset()), ZENSICAL, tmp_path / "page")
    heading = replace(page, text="# Title\n\n[somewhere](#nowhere)\n")
    with pytest.raises(subprocess.CalledProcessError):
        build(Site((heading,), frozenset()), ZENSICAL, tmp_path / "heading")
