"""The parts that every process of the fleet shares.

In reading order: `process` (logs, threads, the event loop), `rpc` (gRPC servers and streams), `security` (TLS
and its flags), `profiles` (the cost profiles that come with Baton, by name).

May import `scheduling` and the generated stubs below `baton`.
"""
