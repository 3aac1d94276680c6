"""The generated documents below docs/ say what the code says."""

from pathlib import Path

import pytest

from tools.document.__main__ import documents

DOCUMENTS = documents()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_generated_document_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == DOCUMENTS[path], "run `make docs`"


def test_every_flag_has_a_meaning() -> None:
    (configuration,) = (text for path, text in DOCUMENTS.items() if path.name == "configuration.md")
    rows = [line for line in configuration.splitlines() if line.startswith("| `")]
    assert rows
    assert not [row for row in rows if row.endswith("|  |")]
