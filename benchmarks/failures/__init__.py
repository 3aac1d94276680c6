"""Fleets whose processes die, leave or stall, and what their clients see:

- `leaving`, `recovery`: pauses of `streams` when a worker leaves, and when a worker or router is killed
- `cancel`: how soon a request ended from outside frees its resources; `cancel_scene` brings it to a phase,
  and `freeing` observes its blocks and its entries in Redis
- `many_routers`: routers on one Redis; `shared_redis` is a run, and `redis_watch` checks every command
- `soak`: minutes of load on the fleet of `soak_fleet`
- `crowd`: the clients of `many_routers` and `soak`, in their own processes
"""
