"""Documents as pages of the site: all are there, links lead to its places, and commands are marked."""

from __future__ import annotations

import posixpath
import re
from collections import Counter

import pytest

from tools.house.source_tree import ROOT
from tools.site.agents import split
from tools.site.building import index
from tools.site.navigation import AGENTS, sections
from tools.site.pages import FENCE, FILES, NOT_RUN, Page, anchors, read_site, title_of_block

SITE = read_site()
PLACES = {page.place: page for page in SITE.pages}
DOCUMENTS = sorted({document for section in sections() for document in section.documents})


def test_the_navigation_names_every_document_once() -> None:
    named = Counter(document for section in sections() for document in section.documents)
    written = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert written <= set(named)
    assert set(named.values()) == {1}


def test_no_two_pages_have_one_title_in_a_section() -> None:
    titles = Counter((page.section, page.title) for page in SITE.pages)
    assert not [title for title, number in titles.items() if number > 1]


@pytest.mark.parametrize("page", SITE.pages, ids=lambda page: page.place)
def test_every_link_leads_to_a_place_of_the_site(page: Page) -> None:
    for link in re.findall(
        r"(?:\]\(|(?:href|src)=\")(?!https?:)([^)\"\s]+)(?=[)\"])", FENCE.sub("", page.text)
    ):
        path, _, fragment = link.partition("#")
        place = (
            posixpath.normpath(posixpath.join(posixpath.dirname(page.place), path)) if path else page.place
        )
        if place in PLACES:
            assert not fragment or fragment in anchors(PLACES[place].text), link
        else:
            assert place.removeprefix(f"{FILES}/") in SITE.files, link
            assert (ROOT / place.removeprefix(f"{FILES}/")).is_file(), link


def test_each_program_of_the_agents_has_a_page() -> None:
    text = (ROOT / AGENTS).read_text(encoding="utf-8")
    linked = set(re.findall(r"^\| \[[^]]*\]\(#(\S+)\)", text, flags=re.MULTILINE))
    assert linked == {
        place.split("/")[1].removesuffix(".md") for place in PLACES if place.startswith("agents/")
    }
    rest, pages = split(text)
    for name, page in pages.items():
        block = FENCE.search(page)
        assert block is not None, name
        assert block[0] in text
        assert block[0] not in rest


def test_commands_are_marked_and_files_and_outputs_are_not() -> None:
    assert title_of_block("sh", "run=tests/x.py", "make\n") == "Run by tests/x.py"
    assert title_of_block("sh", "", "anything\n") == NOT_RUN
    assert title_of_block("", "", "# first\n.venv/bin/baton up\n") == NOT_RUN
    assert title_of_block("", "", "client ──▶ router\n") == ""
    assert title_of_block("toml", ".codex/config.toml", "a = 1\n") == ".codex/config.toml"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_is_said_to_run_a_documents_commands_reads_them(document: str) -> None:
    """A test that runs them takes them from the document, which it names; CI runs them word for word."""
    for _, info, block in FENCE.findall((ROOT / document).read_text(encoding="utf-8")):
        if info.startswith("run="):
            runner = (ROOT / info.removeprefix("run=")).read_text(encoding="utf-8")
            assert posixpath.basename(document) in runner or block.strip() in runner, info


def test_the_index_for_language_models_has_every_page_with_a_sentence() -> None:
    entries = re.findall(r"^- \[([^]]+)\]\((\S+)\): (.+)$", index(SITE), flags=re.MULTILINE)
    assert [place for _, place, _ in entries] == [page.place for page in SITE.pages]
