"""Fleets whose processes die, leave or stall, and what their clients see:

- `leaving`, `recovery`: pauses of `streams` when a worker leaves, and when a worker or router is killed
- `cancel`: how soon a request ended from outside frees its resources; `cancel_scene` brings it to a phase,
  and `freeing` observes its blocks and its entries in Redis
- `many_routers`: routers on one Redis, of which `redis_watch` checks every command
- `soak`: minutes of load on a fleet of the size of real cards
- `burst`: thousands of requests in one moment, beside a neighbour's
- `crowd`: the clients of `many_routers` and `soak`, in their own processes
"""
