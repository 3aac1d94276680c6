"""The common parts of gRPC servers and streams: `listening`, `role_guard` (who may call what), `health`,
`reflection`, `handlers`, `reading`, `numbering`, `probe`, `calls`, `convert`.

May import `scheduling`, `services.process`, `services.security` and the generated stubs.
"""
