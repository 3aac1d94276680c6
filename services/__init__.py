"""What every process of the fleet shares: its event loop and logs, its gRPC server, and its security.

In reading order:

- `process/`: `log` (structured logs), `background` (writes without waiting), `event_loop`, `standstill`,
  `watchdog` (watch that loop), `threads`, `garbage`.
- `rpc/`: `listening` (ports), `health`, `reflection`, `handlers` and `reading` (checks before each call),
  `numbering` and `probe` (liveness of streams), `calls`, `convert` (messages that all services share).
- `security/`: `settings` (flags), `tls` (certificates), `role_guard` (who may call which service).
- `profiles`: the cost profiles that come with Baton, by name.

May import `scheduling` and the generated stubs below `baton`; no service imports another one through it.
"""
