"""Documents as pages of the site."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from tools.house.source_tree import ROOT
from tools.site import agents
from tools.site.navigation import AGENTS, place, sections

FILES = "files"
"""The folder on the site for other files of the checkout that documents link to."""
NOT_RUN = "Not run by a test as it stands here"
FENCE = re.compile(r"^```(\w*) ?([^\n]*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_LINK = re.compile(r'(\]\(|(?:href|src)=")(?!https?:)([^)"\s#]*)(#[^)"\s]*)?(?=[)"])')
_PROGRAMS = (
    *("apt-get", "baton", "curl", "docker", "export", "for", "git", "grpcurl", "helm", "kubectl", "make"),
    *("pip", "python", "time", "torchrun"),
)
_COMMAND = re.compile(rf"^(\$ )?(\.venv/bin/|\w+=\S+ |({'|'.join(_PROGRAMS)}) )", flags=re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), flags=re.MULTILINE)
    return {agents.anchor(heading) for heading in headings}


@dataclass(frozen=True, slots=True)
class Page:
    """A page in Markdown, with its place below the site's address."""

    section: str
    place: str
    text: str

    @property
    def title(self) -> str:
        return self.text.partition("\n")[0].removeprefix("# ")

    @property
    def summary(self) -> str:
        """Return the first sentence of its first paragraph that is more than links, without its links."""
        paragraphs = FENCE.sub("", self.text).split("\n\n")[1:]
        prose = (text.strip() for text in paragraphs if not re.match(r"\s*([#<|!\[-]|`python |$)", text))
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(next(prose, "").split()))
        return re.split(r"(?<=\.)\s(?=[A-Z`])", words)[0]


@dataclass(frozen=True, slots=True)
class Site:
    """All pages in their order, and the files of the checkout that they link to."""

    pages: tuple[Page, ...]
    files: frozenset[str]


def read_site() -> Site:
    """Return the site of the documents in the checkout."""
    documents = [document for section in sections() for document in section.documents]
    texts = {document: (ROOT / document).read_text(encoding="utf-8") for document in documents}
    texts[AGENTS], programs = agents.split(texts[AGENTS])
    places = {document: place(document) for document in (*documents, "README.md")}
    places |= {f"{AGENTS}#{anchor}": f"agents/{anchor}.md" for anchor in programs}
    files: set[str] = set()
    pages = []
    for section in sections():
        for document in section.documents:
            parts = {document: texts[document]}
            if document == AGENTS:
                parts |= {f"{AGENTS}#{anchor}": text for anchor, text in programs.items()}
            for name, text in parts.items():
                page_text = _Writer(document, places[name], places, files).written(text)
                pages.append(Page(section.title, places[name], page_text))
    return Site(tuple(pages), frozenset(files))


def title_of_block(language: str, info: str, block: str) -> str:
    """Return what stands above a fenced block: the file it is, or which test runs the commands in it."""
    if info.startswith("run="):
        return f"Run by {info.removeprefix('run=')}"
    has_commands = language == "sh" or (not language and _COMMAND.search(block) is not None)
    return NOT_RUN if has_commands and not info else info


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes a document, or a part of one, for its place on the site; `files` gets what else it links to."""

    document: str
    place: str
    places: dict[str, str]
    files: set[str]

    def written(self, text: str) -> str:
        parts = []
        end = 0
        for fence in FENCE.finditer(text):
            parts += [_LINK.sub(self._link, text[end : fence.start()]), _titled(fence)]
            end = fence.end()
        return "".join(parts) + _LINK.sub(self._link, text[end:])

    def _link(self, link: re.Match[str]) -> str:
        start, path, anchor = link[1], link[2], link[3] or ""
        folder = posixpath.dirname(self.document)
        target = posixpath.normpath(posixpath.join(folder, path)) if path else self.document
        if f"{target}{anchor}" in self.places:
            target, anchor = self.places[f"{target}{anchor}"], ""
        elif target in self.places:
            target = self.places[target]
        else:
            self.files.add(target)
            target = f"{FILES}/{target}"
        if target == self.place and anchor:
            return f"{start}{anchor}"
        return f"{start}{posixpath.relpath(target, posixpath.dirname(self.place) or '.')}{anchor}"


def _titled(fence: re.Match[str]) -> str:
    language, info, block = fence[1], fence[2], fence[3]
    title = title_of_block(language, info, block)
    head = f'{language or "text"} title="{title}"' if title else language
    return f"```{head}\n{block}```"
