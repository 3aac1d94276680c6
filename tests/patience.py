"""How long a test waits for what must come."""

PATIENCE_S = 60.0
"""Only a failure takes this long. A machine that does much else may take a tenth of it."""
