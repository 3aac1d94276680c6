"""The output that commands share: `fleet_reporter` (a running fleet) and `generation_view` (what a generation
says, and its outcome).
"""
