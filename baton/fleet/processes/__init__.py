"""Processes of a fleet.

- `process`: start and watch one. `group`: all of a fleet.
- `redis`: the private Redis servers.
- `reaper`: end everything in any case.
- `events`, `errors`: what happens to processes and to the fleet that they form.
"""
