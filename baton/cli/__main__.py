"""`python -m baton.cli` is the program `baton`."""

import sys

from baton.cli import main

if __name__ == "__main__":
    sys.exit(main())
