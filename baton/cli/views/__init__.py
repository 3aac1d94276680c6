"""The output of commands: `fleet_reporter` (a running fleet), `status_view`, `summary` (one generation) and
`demo_view`.
"""
