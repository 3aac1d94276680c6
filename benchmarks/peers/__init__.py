"""Baton's router and gateway beside the frontends of others, which run on this machine in turns.

- `command`: what is measured and how it is reported
- `loads`: streams that are begun together, and requests at a rate
- `baton_arm`, `many` (one call for all generations), `dynamo_arm`: what takes the load; Dynamo gets an
  environment of its own
"""
