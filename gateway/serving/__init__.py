"""Parts that all HTTP APIs of the gateway share.

In reading order:

- `connection`: each connection, bounded in time and size, and how many there are.
- `door`: what is settled before a body is read, by credential and origin; `shares`: how much each caller may
  hold.
- `request_log`: what is counted and logged of each request; `metrics`: the metrics.
- `bodies`: bounded JSON requests in, and which parts are left out; `streaming`: event streams out, and
  callers who leave.
- `fleet`: the fleets' clients, which act with each caller's own credential; a request's model picks one.
- `generations`: the generations that a request asks for; `direct`: the shortest way of their tokens;
  `slo`: what is promised and delivered.
- `errors`: an error's meaning, before it gets an API's own shape.

May import nothing else of the gateway.
"""
