"""Problems of a site are found in its HTML and its styles."""

from __future__ import annotations

from pathlib import Path

from tools.site.checking import problems


def test_a_site_whose_links_lead_somewhere_has_no_problems(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">A</h1><a href="part/b.html#there">b</a><a href="#top">a</a>'
    )
    (tmp_path / "part" / "b.html").write_text(
        '<p id="there">b</p><a href="..">a</a><a href="https://x.example">x</a>'
    )
    assert problems(tmp_path) == []


def test_each_problem_is_named_with_its_page(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html">b</a><a href="#gone">c</a><script src="https://cdn.example/x.js"></script>'
        '<link rel="stylesheet" href="//fonts.example/f.css"><img src="gone.png">'
    )
    (tmp_path / "style.css").write_text("@font-face { src: url(https://fonts.example/f.woff2) }")
    assert problems(tmp_path) == [
        "a.html: #gone leads to no heading",
        "a.html: b.html leads nowhere",
        "a.html: gone.png leads nowhere",
        "a.html: loads //fonts.example/f.css from elsewhere",
        "a.html: loads https://cdn.example/x.js from elsewhere",
        "style.css loads from elsewhere",
    ]
