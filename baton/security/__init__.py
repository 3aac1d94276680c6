"""Credentials and certificates.

In reading order: `credentials` (a client's), `reachability` (why a router cannot be called), `certificates`
(the fleet's own CA), `kubernetes_secrets` (the certificates of a namespace), `secret_files` (where and how
secrets are written), `auth_file` (API keys for routers).

May import `baton.errors`. Only `certificates` and `kubernetes_secrets` need the package cryptography.
"""
