"""The documents of the site in their order, and where each is on the site."""

from __future__ import annotations

from dataclasses import dataclass

from tools.house.source_tree import ROOT

HOME = "docs/index.md"
AGENTS = "docs/agents.md"
PLACES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "benchmarks/RESULTS.md": "measurements/results.md",
}
"""Documents outside docs/. README.md is none of the pages; links to it lead to the first one."""


@dataclass(frozen=True, slots=True)
class Section:
    """Documents under one heading, by their paths in the checkout."""

    title: str
    documents: tuple[str, ...]


def sections() -> list[Section]:
    """Return the headings of the navigation, with every document of docs/ under one of them."""
    return [
        Section("Start", _named(HOME, "start", "coming-from", "models", "page")),
        Section(
            "Call it",
            _named("openai", "anthropic", "responses", "grpc", "typescript", "batches", "errors", "api"),
        ),
        Section("Coding agents", (AGENTS,)),
        Section(
            "Run it",
            _named("configuration", "metrics", "compose", "kubernetes", "inference-gateway", "security"),
        ),
        Section("Keep it running", _named("troubleshooting", "failures", "tracing")),
        Section(
            "Make more of it",
            _named(
                *("lora", "kv-tiers", "shared-prefixes", "speculation", "precision"),
                *("tensor-parallel", "pipelines", "simulation"),
            ),
        ),
        Section(
            "Understand it",
            ("ARCHITECTURE.md", *_named("architecture", "token", "policies", "decisions", "glossary")),
        ),
        Section("Measurements", ("benchmarks/RESULTS.md", "docs/limits.md", *_found("docs/measurements"))),
        Section("Older measurements", _found("docs/measurements/history")),
        Section("Change it", ("CONTRIBUTING.md", "CHANGELOG.md")),
    ]


def place(document: str) -> str:
    """Return the place of a document on the site."""
    return PLACES.get(document) or document.removeprefix("docs/")


def _named(*names: str) -> tuple[str, ...]:
    return tuple(name if "/" in name else f"docs/{name}.md" for name in names)


def _found(folder: str) -> tuple[str, ...]:
    return tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.md")))
