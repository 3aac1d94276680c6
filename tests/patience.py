"""How long a test waits for an event that must come."""

PATIENCE_S = 120.0
"""Only a failure takes this long. A busy machine may need a tenth of it, a starved one a half."""
