"""`python -m router.replay FILE...`: decide recordings again."""

from __future__ import annotations

import sys

from router.replay.replay import main

if __name__ == "__main__":
    sys.exit(main())
