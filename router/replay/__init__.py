"""Recordings of what entered a core: `recording` writes them, `replay` decides them again, `codec` converts
rows.

May import `router.core`, `router.errors`, `scheduling` and `runtime.process`.
"""
