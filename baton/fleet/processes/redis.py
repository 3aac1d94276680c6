"""A fleet's private Redis servers, which listen on unix sockets that only the fleet's user can open.

They listen on no port: every account of the machine could connect to one. The redis-server in Baton's
packages is built without TLS, which a socket does not need.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from pathlib import Path

from baton.fleet.processes.process import ProcessSpec
from baton.security.secret_files import replace_secret

REDIS, GATEWAY_REDIS = "redis", "redis-gateway"
"""The fleet's own server, and the one in which gateways keep what outlives them."""

REDIS_USER = "baton"
"""The user with the password of a secured fleet."""

_RIGHTS = "resetchannels ~{baton}* &{baton}* +@all -@admin -@dangerous +client +info +keys"
"""The rights of a fleet: its own keys, and no command for administration, which could write files."""

_LONGEST_SOCKET = 107
"""The longest path in bytes that Linux gives a unix socket."""

_READY = re.compile("[Rr]eady to accept connections")


def redis_process(name: str, server: Path, folder: Path, password: str | None = None) -> ProcessSpec:
    """Write the server's users to `folder`, where its socket will be, and return the server's process.

    The fleet's own keeps nothing on disk, since the fleet's state begins anew with each start. The gateways'
    logs to `folder` what they keep for their callers; a full disk or memory there stops nobody else. Neither
    evicts a key. Raises `ValueError` if the path of the folder is too long for a socket.
    """
    users = folder / "users.acl"
    replace_secret(users, _users(password).encode())
    socket = str(folder / "redis.sock")
    if len(os.fsencode(socket)) > _LONGEST_SOCKET:
        raise ValueError(
            f"TMPDIR is {str(folder.parent)!r}: a socket in it would have a path of more than "
            f"{_LONGEST_SOCKET} bytes; accepted: a shorter one"
        )
    settings = {
        "port": "0",
        "unixsocket": socket,
        "unixsocketperm": "600",
        "aclfile": str(users),
        "dir": str(folder),
        "save": "",
        "appendonly": "yes" if name == GATEWAY_REDIS else "no",
        # By default a write that was answered may wait two seconds for its log while the disk is busy.
        "appendfsync": "always",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    flags = itertools.chain.from_iterable((f"--{key}", value) for key, value in settings.items())
    return ProcessSpec(name, (str(server), *flags), folder, _READY, socket)


def redis_url(process: ProcessSpec, password: str | None = None) -> str:
    """Return the URL of a private server; it never contains the password."""
    return f"unix://{process.address}" if password is None else f"unix://{REDIS_USER}@{process.address}"


def _users(password: str | None) -> str:
    """Return the users of a server in Redis's format: one, who shows the password if there is one."""
    if password is None:
        return f"user default on nopass {_RIGHTS}\n"
    digest = hashlib.sha256(password.encode()).hexdigest()
    return f"user default off\nuser {REDIS_USER} on #{digest} {_RIGHTS}\n"
