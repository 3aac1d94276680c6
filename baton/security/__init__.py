"""Credentials and certificates.

In reading order: `credentials` (a client's), `certificates` (the fleet's own CA), `kubernetes_secrets` (the
certificates of a namespace), `secret_files` (where and how secrets are written), `auth_file` (API keys for
routers).

May import nothing else of the project. Only `certificates` and `kubernetes_secrets` need the package
cryptography.
"""
