"""The output of commands: `fleet_reporter` (a running fleet), `status_view`, `summary` (one generation),
`message_view` (what it says) and `demo_view`.
"""
