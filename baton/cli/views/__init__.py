"""The output of commands: `fleet_reporter` (a running fleet), `status_view`, `generation_view` (what a
generation says, and its outcome) and `demo_view`.
"""
