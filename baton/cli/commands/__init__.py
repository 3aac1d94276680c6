"""The commands: `up`, `restart` and `demo` (fleets), `generate`, `chat` and `quote` (requests), `status` and
`health`, `certs` and `key` (security).
"""
