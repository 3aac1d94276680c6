"""Security of services: `settings` (flags), `tls` (certificates and roles).

Imports nothing else of `runtime`.
"""
