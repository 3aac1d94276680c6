"""The parts that every process of the fleet shares.

In reading order: `process` (logs, threads, the event loop), `rpc` (gRPC servers and streams), `security` (TLS
and its flags), `settings` (the flags of every service), `hub` (models of the hub), `checkpoints` (folders of
models), `tracing` (traces of requests), `caching` (the folder for what can be made again), `profiles` (cost
profiles, by name), `version`; and `state`, the only access to Redis.

May import `gguf_model`, `scheduling` and the generated stubs below `baton`.
"""
