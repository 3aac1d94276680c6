"""The output of commands: `fleet_reporter` (a running fleet), `status_view`, `summary` (one generation),
`demo_view` and `demo_prompts`.
"""
