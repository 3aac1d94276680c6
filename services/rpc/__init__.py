"""The common parts of gRPC servers and streams: `listening`, `health`, `reflection`, `handlers`, `reading`,
`numbering`, `probe`, `calls`, `convert`. May import `scheduling`, `services.process` and `services.security`.
"""
