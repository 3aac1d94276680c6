"""The common parts of gRPC servers and streams: `listening`, `role_guard` (who may call what), `health`,
`reflection`, `handlers`, `numbering`, `probe`, `calls`, `convert`.

May import `scheduling`, `runtime.process`, `runtime.security` and the generated stubs.
"""
