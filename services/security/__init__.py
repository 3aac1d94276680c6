"""Security of services: `settings` (flags), `tls` (certificates and roles), `role_guard` (who may call what).

Imports nothing else of `services` but `rpc.handlers`.
"""
