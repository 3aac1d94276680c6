"""Decides whether this worker's KV may go by NIXL."""

from __future__ import annotations

import structlog

from kvtransfer.errors import TransportUnavailableError
from kvtransfer.pools.pool import BlockPool
from kvtransfer.transports.nixl import NixlAgent, is_installed
from kvtransfer.transports.transport import TransportMode
from worker.errors import StartupError
from worker.main import RoleContext

log = structlog.get_logger()


def agent_of(context: RoleContext, pool: BlockPool, purpose: str) -> NixlAgent | None:
    """Return an agent with `pool` registered; None if NIXL is not used.

    Without `--transport nixl` it is used if it is installed and the fleet does not encrypt, as NIXL does not.
    """
    mode = context.config.transport
    by_itself = mode is TransportMode.AUTO and is_installed() and context.tls is None
    if mode is not TransportMode.NIXL and not by_itself:
        return None
    try:
        return NixlAgent(f"{context.incarnation}-{purpose}", pool)
    except TransportUnavailableError as error:
        if mode is TransportMode.NIXL:
            raise StartupError(f"--transport is nixl; {error}") from error
        log.warning("nixl_unusable", reason=str(error))
        return None
