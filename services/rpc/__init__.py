"""What gRPC servers and streams share: `listening`, `health`, `reflection`, `handlers`, `reading`,
`numbering`, `probe`, `calls`, `convert`. May import `scheduling`, `services.process` and `services.security`.
"""
