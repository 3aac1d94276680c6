"""The text of generated tokens and where a choice ends: workers generate by it, routers resume by it."""
