"""The receiver reads what the sender writes."""

from typing import TypeVar

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
from tests.fuzzing import messages

T = TypeVar("T")
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
small = st.integers(0, 2**32 - 1)
large = st.integers(0, 2**64 - 1)
floats = st.floats(width=32, allow_nan=False)
fences = st.builds(Fence, names, names, small, small, small, names, names, names)


def tuples(values: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(values, max_size=3).map(tuple)


columns = st.builds(
    TokenColumns,
    handles=st.lists(large, max_size=3),
    choices=st.lists(small, max_size=3),
    indexes=st.lists(small, max_size=3),
    token_ids=st.lists(small, max_size=3),
    finish_reasons=st.lists(st.integers(0, 6), max_size=3),
    text_lengths=st.lists(small, max_size=3),
    text_utf8=st.binary(max_size=5),
    logprob_rows=st.lists(small, max_size=3),
    logprobs=st.lists(floats, max_size=3),
    top_counts=st.lists(small, max_size=3),
    top_token_ids=st.lists(small, max_size=3),
    top_logprobs=st.lists(floats, max_size=3),
    stop_rows=st.lists(small, max_size=3),
    stop_places=st.lists(small, max_size=3),
)
events = st.one_of(
    st.builds(
        Manifest,
        num_blocks=small,
        block_size=small,
        block_bytes=large,
        checksum_kind=st.sampled_from(ChecksumKind),
        shm_socket=names,
        nixl=st.none() | st.builds(NixlPool, agent=st.binary(max_size=5), address=large, num_blocks=small),
    ),
    st.builds(
        Offer,
        indexes=tuples(small),
        sender_blocks=tuples(small),
        block_hashes=tuples(st.binary(max_size=16)),
        checksums=tuples(large),
    ),
    st.builds(Commit, num_tokens=small, first_tokens=columns),
    st.builds(SenderAbort, reason=names),
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
