"""The commands: `up`, `restart` and `demo` (fleets), `generate`, `chat` and `quote` (requests), `status` and
`health`, `certs` and `key` (security), and `checkout_command` (commands that run from a checkout).
"""
