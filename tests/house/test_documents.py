"""Everything that the documents name exists: commands, flags, metrics, targets, files, folders and links."""

import re

import pytest

from tools.house.source_tree import ROOT, packages
from tools.site.pages import FENCE, anchors

DOCUMENTS = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
# What was measured names files, flags and commands as they were at its commit, so only its links are checked.
MEASUREMENTS = [
    "benchmarks/RESULTS.md",
    *(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "measurements").rglob("*.md")),
]
OTHER_SERVERS = "docs/coming-from.md"
"""Its tables have flags of other servers in their first column."""
FOLDERS = packages() | {"clients", "proto", "tests"}
PROGRAM = re.compile(r"(?:\$ )?(?:\.venv/bin/)?(baton [a-z]+|python -m [\w.]+(?: [a-z][a-z-]+)?)")


def _text(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def _quoted(document: str) -> set[str]:
    """Return everything between backticks, and every line of a fenced block."""
    text = _text(document)
    if document == OTHER_SERVERS:
        text = re.sub(r"^\| [^|]* \|", "|", text, flags=re.MULTILINE)
    fenced = (line for _, _, block in FENCE.findall(text) for line in block.splitlines())
    return {*fenced, *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))}


def _targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^\.PHONY: (\S+)$", makefile, flags=re.MULTILINE))


def _configured(pattern: str) -> set[str]:
    """Return what docs/configuration.md lists; another test compares that page with the parsers."""
    return set(re.findall(pattern, _text("docs/configuration.md"), flags=re.MULTILINE))


def _commands() -> set[str]:
    return _configured(r"^### `(baton [a-z]+|python -m [^`]+)`")


def _is_documented(quoted: str) -> bool:
    found = PROGRAM.match(quoted)
    return found is not None and bool({found[1], found[1].rpartition(" ")[0]} & _commands())


def _links(document: str) -> list[str]:
    """Return the targets of links and pictures that lie in the checkout, in Markdown and in HTML."""
    return re.findall(r"(?:\]\(|(?:href|src|srcset)=\")(?!https?:)([^)\"\s]+)", _text(document))


@pytest.mark.parametrize("document", DOCUMENTS + MEASUREMENTS)
def test_no_file_of_a_package_is_named_by_the_address_of_a_mirror(document: str) -> None:
    """Mirrors drop old versions, and who fetches by an address alone does not check what comes."""
    assert not re.search(r"https?://\S+\.(deb|rpm|apk|whl|tgz|tar\.gz)\b", _text(document))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_make_target_exists(document: str) -> None:
    quoted = _quoted(document)
    named = {target for text in quoted for target in re.findall(r"^make ([a-z][a-z-]*)", text)}
    assert named <= _targets()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_path_exists(document: str) -> None:
    words = {word.strip("…,;:\"'()") for quoted in _quoted(document) for word in quoted.split()}
    paths = {
        word
        for word in words
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?", word) and word.split("/")[0] in FOLDERS
    }
    written = {path for _, path, _ in FENCE.findall(_text(document))}
    assert not {path for path in paths - written if not (ROOT / path).exists()}


@pytest.mark.parametrize("document", DOCUMENTS + MEASUREMENTS)
def test_every_link_within_the_checkout_leads_somewhere(document: str) -> None:
    for link in _links(document):
        path, _, anchor = link.partition("#")
        target = (ROOT / document).parent.joinpath(path) if path else ROOT / document
        assert target.exists(), link
        assert not anchor or anchor in anchors(_text(str(target.resolve().relative_to(ROOT)))), link


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_command_exists(document: str) -> None:
    known = _commands()
    for command in (match[1] for quoted in _quoted(document) if (match := PROGRAM.match(quoted))):
        program, module = command.split()[0], command.split()[-1]
        if program == "python" and command not in known:
            module = command.split()[2]
            path = ROOT / module.replace(".", "/")
            assert (
                path.with_suffix(".py").exists() or (path / "__main__.py").exists() or module == "pytest"
            ), command
        elif program == "baton":
            assert command in known, command


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_flag_exists(document: str) -> None:
    known = _configured(r"(--[a-z][a-z-]*)") | {"--help"}
    ours = {quoted for quoted in _quoted(document) if quoted.startswith("--") or _is_documented(quoted)}
    assert {flag for text in ours for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)} <= known


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_metric_exists(document: str) -> None:
    known = set(re.findall(r"`(baton_\w+)`", _text("docs/metrics.md")))
    assert {name for quoted in _quoted(document) for name in re.findall(r"\bbaton_\w+", quoted)} <= known


def test_the_makefile_has_the_targets_that_ci_and_readers_need() -> None:
    assert {"setup", "demo", "test", "lint", "check", "proto", "docs", "bench", "demo-model"} <= _targets()


def test_the_map_of_the_folders_names_every_package() -> None:
    map_of_folders = _text("ARCHITECTURE.md")
    assert not {package for package in packages() if f"`{package}/`" not in map_of_folders}


def test_the_documents_are_linked_from_the_readme() -> None:
    readme = _text("README.md")
    assert not [
        document for document in DOCUMENTS if document != "README.md" and f"]({document})" not in readme
    ]


def test_the_measurements_are_linked_from_their_summary() -> None:
    """A page of older figures is linked from the page of its subject."""
    linked = {link.partition("#")[0] for link in _links("benchmarks/RESULTS.md")}
    pages = list((ROOT / "docs" / "measurements").glob("*.md"))
    assert not {page.name for page in pages if f"../docs/measurements/{page.name}" not in linked}
    older = [page for page in pages if (page.parent / "history" / page.name).exists()]
    assert not {
        page.name for page in older if f"history/{page.name}" not in _links(f"docs/measurements/{page.name}")
    }


def test_ci_runs_what_the_readme_names() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = _text("README.md")
    for command in ("make check", "make demo"):
        assert command in ci
        assert command in readme
