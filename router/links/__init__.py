"""The connections between the core and everything outside it.

In reading order: `shell` (carries actions out), `client_stream` (buffers tokens for a client), `store_calls`
(to Redis), `discovery` (finds workers), `worker_link` (one worker's stream, and its probes), `convert_worker`
(its messages), `failure_detector` and `ticker` (whether a worker is alive, measured in ticks), `demand` (what
is asked of the fleet), `step_log` (steps for operators who watch them), `request_spans` (what is traced),
`metrics`.

Of the router it may import `core`, `errors` and `replay.recording`.
"""
