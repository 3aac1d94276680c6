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
from runtime.rpc.convert import columns_from_pb, columns_to_pb, from_pb, to_pb


def reach_to_pb(reach: CudaReach) -> kvtransfer_pb2.CudaReach:
    return to_pb(kvtransfer_pb2.CudaReach, reach)


def reach_from_pb(message: kvtransfer_pb2.CudaReach) -> CudaReach:
    """Convert a receiver's reach; an empty message reaches no GPU."""
    return from_pb(CudaReach, message)


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
            return from_pb(Offer, message.offer)
        case "commit":
            return Commit(message.commit.num_tokens, columns_from_pb(message.commit.first_tokens))
        case "abort":
            return SenderAbort(message.abort.reason)
        case _:
            raise ProtocolError("event is empty; accepted: manifest, offer, commit or abort")


def _manifest_to_pb(manifest: Manifest) -> kvtransfer_pb2.Manifest:
    nixl, cuda = manifest.nixl, manifest.cuda_ipc
    return to_pb(
        kvtransfer_pb2.Manifest,
        manifest,
        checksum_kind=kvtransfer_pb2.ChecksumKind.Name(manifest.checksum_kind),
        nixl=None if nixl is None else to_pb(kvtransfer_pb2.NixlPool, nixl),
        cuda_ipc=None if cuda is None else to_pb(kvtransfer_pb2.CudaPool, cuda),
    )


def _manifest_from_pb(message: kvtransfer_pb2.Manifest) -> Manifest:
    try:
        kind = ChecksumKind(message.checksum_kind)
    except ValueError:
        known = ", ".join(kind.name for kind in ChecksumKind)
        raise ProtocolError(f"checksum_kind is {message.checksum_kind}; accepted: {known}") from None
    return from_pb(
        Manifest,
        message,
        checksum_kind=kind,
        nixl=from_pb(NixlPool, message.nixl) if message.HasField("nixl") else None,
        cuda_ipc=from_pb(CudaPool, message.cuda_ipc) if message.HasField("cuda_ipc") else None,
    )
