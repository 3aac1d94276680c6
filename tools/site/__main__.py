"""`python -m tools.site`: build the site into build/site/html."""

from __future__ import annotations

import sys

from tools.house.source_tree import ROOT
from tools.site.building import build
from tools.site.checking import problems
from tools.site.pages import read_site

ZENSICAL = ROOT / ".venv-site" / "bin" / "zensical"


def main() -> None:
    """Build the site, and fail with a list of what is wrong with it."""
    served = build(read_site(), ZENSICAL, ROOT / "build" / "site")
    lines = problems(served)
    if lines:
        sys.exit("\n".join(lines))
    folder = served.relative_to(ROOT)
    print(f"The site is in {folder}; to read it: python3 -m http.server --directory {folder}")


if __name__ == "__main__":
    main()
