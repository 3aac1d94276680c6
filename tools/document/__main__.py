"""`python -m tools.document`: write docs/configuration.md, docs/metrics.md and docs/api.md."""

from __future__ import annotations

from pathlib import Path

from tools.document import configuration, contract, metrics

DOCS = Path(__file__).resolve().parents[2] / "docs"


def documents() -> dict[Path, str]:
    """Return the text of each generated document by its path."""
    return {
        DOCS / "configuration.md": configuration.text(),
        DOCS / "metrics.md": metrics.text(),
        DOCS / "api.md": contract.text(),
    }


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
