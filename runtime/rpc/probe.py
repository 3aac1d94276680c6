"""Sign and check the datagrams with which a router probes a worker; see `Datagram` in `worker.proto`."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError

from baton.worker.v1.worker_pb2 import Datagram, Probe, ProbeAck

KEY_BYTES = 32
TAG_BYTES = 16
MAX_BYTES = 512
"""Longer than any datagram of ours."""

M = TypeVar("M", Probe, ProbeAck)


def seal(message: Probe | ProbeAck, key: bytes) -> bytes:
    """Return the signed datagram."""
    body = message.SerializeToString()
    return Datagram(body=body, tag=_tag(type(message), body, key)).SerializeToString()


def unseal(data: bytes, kind: type[M], key_of: Callable[[M], bytes]) -> M | None:
    """Return the message of a datagram, or None unless it was signed with the key that belongs to it.

    `key_of` returns an empty key for a message that belongs to no stream.
    """
    try:
        datagram = Datagram.FromString(data)
        message = kind.FromString(datagram.body)
    except DecodeError:
        return None
    key = key_of(message)
    if not key or not hmac.compare_digest(datagram.tag, _tag(kind, datagram.body, key)):
        return None
    return message


def _tag(kind: type[Probe | ProbeAck], body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, kind.DESCRIPTOR.full_name.encode() + body, "sha256")[:TAG_BYTES]
