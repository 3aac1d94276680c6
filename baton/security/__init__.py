"""Credentials and certificates.

In reading order: `credentials` (a client's), `reachability` (why a router cannot be called), `certificates`
(the fleet's own CA), `secret_files` (where and how secrets are written), `auth_file` (API keys for routers).

May import `baton.errors`. Only `certificates` needs the package cryptography.
"""
