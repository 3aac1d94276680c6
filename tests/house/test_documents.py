"""What the documents name exists: commands, files, folders and links."""

import re

import pytest

from tools.house.source_tree import ROOT, packages

DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
FOLDERS = packages() | {"docker", "proto", "requirements", "tests"}


def _text(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def _quoted(document: str) -> set[str]:
    """Everything between backticks, and every line of a fenced block."""
    text = _text(document)
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    return {*inline, *(line for block in fenced for line in block.splitlines())}


def _targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^\.PHONY: (\S+)$", makefile, flags=re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_make_target_exists(document: str) -> None:
    named = {match[1] for quoted in _quoted(document) if (match := re.match(r"make ([a-z][a-z-]*)", quoted))}
    assert named
    assert named <= _targets()


@pytest.mark.parametrize("document", [*DOCUMENTS, "docs/security.md", "docs/errors.md"])
def test_every_named_path_exists(document: str) -> None:
    named = {name for name in _quoted(document) if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", name)}
    paths = {name for name in named if "/" in name and name.split("/")[0] in FOLDERS}
    missing = {name for name in paths if not (ROOT / name).exists()}
    assert paths
    assert not missing


@pytest.mark.parametrize("document", [*DOCUMENTS, "docs/security.md", "docs/errors.md"])
def test_every_relative_link_leads_somewhere(document: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", _text(document))
    missing = [link for link in links if not (ROOT / document).parent.joinpath(link).exists()]
    assert not missing


def test_every_described_make_target_is_one_that_the_makefile_has() -> None:
    assert {"setup", "demo", "test", "lint", "check", "proto", "bench", "demo-model"} <= _targets()


def test_the_readme_shows_every_package_of_the_house() -> None:
    missing = {package for package in packages() if f"`{package}/`" not in _text("README.md")}
    assert not missing


def test_ci_runs_what_the_readme_names() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = _text("README.md")
    for command in ("make check", "make demo"):
        assert command in ci
        assert command in readme
