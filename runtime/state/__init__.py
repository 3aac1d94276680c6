"""The fleet's shared state, and the project's only access to Redis.

In reading order: `records` (what is stored), `keys`, `store` (the operations), `announcements` (the texts of
workers), `prefix_walk` (how far a worker has a prompt), `connection` (scripts and epochs), `multiplexer` (one
connection for many calls), `standstill` (time limits), `durable` (what outlives epochs, for gateways),
`access` (credentials), `errors`, and the scripts themselves in `lua/`.

May import `scheduling`. Routers, workers, gateways and the simulator use it.
"""
