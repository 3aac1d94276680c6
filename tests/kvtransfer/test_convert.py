"""The receiver reads what the sender writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.worker.v1 import kvtransfer_pb2 as pb
from kvtransfer.convert import event_from_pb, event_to_pb
from kvtransfer.errors import ProtocolError
from kvtransfer.manifest import ChecksumKind, Commit, Manifest, NixlPool, Offer, SenderAbort
from runtime.rpc.convert import columns_from_pb, columns_to_pb, fence_from_pb, fence_to_pb
from scheduling.columns import TokenColumns
from scheduling.request import Fence
from tests.drawing import LARGE, SMALL, drawn
from tests.fuzzing import messages

fences = drawn(Fence)
numbers = st.lists(SMALL, max_size=3).map(tuple)
floats = st.lists(st.floats(width=32, allow_nan=False), max_size=3)
columns = drawn(
    TokenColumns,
    handles=st.lists(LARGE, max_size=3),
    finish_reasons=st.lists(st.integers(0, 6), max_size=3),
    logprobs=floats,
    top_logprobs=floats,
)
events = st.one_of(
    drawn(
        Manifest,
        block_bytes=LARGE,
        nixl=st.none() | drawn(NixlPool, address=LARGE),
    ),
    drawn(
        Offer,
        indexes=numbers,
        sender_blocks=numbers,
        block_hashes=st.lists(st.binary(max_size=16), max_size=3).map(tuple),
        checksums=st.lists(LARGE, max_size=3).map(tuple),
    ),
    drawn(Commit, first_tokens=columns),
    drawn(SenderAbort),
)


@given(events)
def test_events_survive_the_wire(event: Manifest | Offer | Commit | SenderAbort) -> None:
    assert event_from_pb(pb.OpenResponse.FromString(event_to_pb(event).SerializeToString())) == event


@given(fences)
def test_fences_survive_the_wire(fence: Fence) -> None:
    assert fence_from_pb(fence_to_pb(fence)) == fence


@given(columns)
def test_columns_survive_the_wire(given_columns: TokenColumns) -> None:
    assert columns_from_pb(columns_to_pb(given_columns)) == given_columns


@given(messages(pb.OpenResponse))
def test_any_event_is_understood_or_refused(message: pb.OpenResponse) -> None:
    kind = message.WhichOneof("event")
    if kind is None or (kind == "manifest" and message.manifest.checksum_kind not in list(ChecksumKind)):
        with pytest.raises(ProtocolError, match="accepted: "):
            event_from_pb(message)
    else:
        event = event_from_pb(message)
        assert repr(event_from_pb(event_to_pb(event))) == repr(event), "as words, since NaN is not NaN"


def test_an_empty_event_is_refused() -> None:
    with pytest.raises(ProtocolError, match="event is empty"):
        event_from_pb(pb.OpenResponse())


def test_a_checksum_nobody_here_can_check_is_refused() -> None:
    with pytest.raises(ProtocolError, match="checksum_kind is 0; accepted: XXH3_64"):
        event_from_pb(pb.OpenResponse(manifest=pb.Manifest(num_blocks=1)))
