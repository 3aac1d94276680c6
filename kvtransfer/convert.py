"""Converts the messages of a handoff to and from the protocol."""

from __future__ import annotations

from baton.worker.v1 import kvtransfer_pb2
from kvtransfer.errors import ProtocolError
from kvtransfer.manifest import (
    ChecksumKind,
    Commit,
    CudaPool,
    CudaReach,
    Manifest,
    NixlPool,
    Offer,
    OpenEvent,
    SenderAbort,
)
from services.rpc.convert import columns_from_pb, columns_to_pb, from_pb, to_pb


def reach_to_pb(reach: CudaReach) -> kvtransfer_pb2.CudaReach:
    return kvtransfer_pb2.CudaReach(host=reach.host, gpus=reach.gpus)


def reach_from_pb(message: kvtransfer_pb2.CudaReach) -> CudaReach:
    """Convert a receiver's reach; an empty message reaches no GPU."""
    return CudaReach(message.host, tuple(message.gpus))


def event_to_pb(event: OpenEvent) -> kvtransfer_pb2.OpenResponse:
    match event:
        case Manifest():
            return kvtransfer_pb2.OpenResponse(manifest=_manifest_to_pb(event))
        case Offer():
            return kvtransfer_pb2.OpenResponse(offer=to_pb(kvtransfer_pb2.Offer, event))
        case Commit(num_tokens, first_tokens):
            commit = kvtransfer_pb2.Commit(num_tokens=num_tokens, first_tokens=columns_to_pb(first_tokens))
            return kvtransfer_pb2.OpenResponse(commit=commit)
        case SenderAbort(reason):
            return kvtransfer_pb2.OpenResponse(abort=kvtransfer_pb2.SenderAbort(reason=reason))


def event_from_pb(message: kvtransfer_pb2.OpenResponse) -> OpenEvent:
    """Convert an event; raise ProtocolError if it is empty or of an unknown kind."""
    match message.WhichOneof("event"):
        case "manifest":
            return _manifest_from_pb(message.manifest)
        case "offer":
            return _offer_from_pb(message.offer)
        case "commit":
            return Commit(message.commit.num_tokens, columns_from_pb(message.commit.first_tokens))
        case "abort":
            return SenderAbort(message.abort.reason)
        case _:
            raise ProtocolError("event is empty; accepted: manifest, offer, commit or abort")


def _manifest_to_pb(manifest: Manifest) -> kvtransfer_pb2.Manifest:
    return kvtransfer_pb2.Manifest(
        num_blocks=manifest.num_blocks,
        block_size=manifest.block_size,
        block_bytes=manifest.block_bytes,
        checksum_kind=kvtransfer_pb2.ChecksumKind.Name(manifest.checksum_kind),
        shm_socket=manifest.shm_socket,
        nixl=None if manifest.nixl is None else to_pb(kvtransfer_pb2.NixlPool, manifest.nixl),
        cuda_ipc=None if manifest.cuda_ipc is None else to_pb(kvtransfer_pb2.CudaPool, manifest.cuda_ipc),
    )


def _manifest_from_pb(message: kvtransfer_pb2.Manifest) -> Manifest:
    try:
        kind = ChecksumKind(message.checksum_kind)
    except ValueError:
        known = ", ".join(kind.name for kind in ChecksumKind)
        raise ProtocolError(f"checksum_kind is {message.checksum_kind}; accepted: {known}") from None
    return Manifest(
        num_blocks=message.num_blocks,
        block_size=message.block_size,
        block_bytes=message.block_bytes,
        checksum_kind=kind,
        shm_socket=message.shm_socket,
        nixl=from_pb(NixlPool, message.nixl) if message.HasField("nixl") else None,
        cuda_ipc=from_pb(CudaPool, message.cuda_ipc) if message.HasField("cuda_ipc") else None,
    )


def _offer_from_pb(message: kvtransfer_pb2.Offer) -> Offer:
    return Offer(
        indexes=list(message.indexes),
        sender_blocks=list(message.sender_blocks),
        block_hashes=list(message.block_hashes),
        checksums=list(message.checksums),
    )
