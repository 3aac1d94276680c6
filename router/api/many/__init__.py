"""GenerateMany: many generations over one call.

In reading order: `call` (one such call, and the generations on it), `rows` (what has arrived for them, as one
message).

May import what `router.api` may.
"""
