"""Only who has a stream's key can ask about it, or answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton.worker.v1.worker_pb2 import Probe, ProbeAck
from runtime.rpc.probe import KEY_BYTES, MAX_BYTES, seal, unseal

KEY, OTHER = b"k" * KEY_BYTES, b"o" * KEY_BYTES
COUNTS = st.integers(0, 2**64 - 1)


@given(stream=COUNTS, number=COUNTS)
def test_what_was_sealed_with_the_key_is_read(stream: int, number: int) -> None:
    probe = Probe(stream=stream, number=number)
    assert unseal(seal(probe, KEY), Probe, lambda _: KEY) == probe


@given(COUNTS, COUNTS, COUNTS, st.floats(allow_nan=False))
def test_the_longest_ack_is_one_datagram(stream: int, number: int, written: int, late_s: float) -> None:
    ack = ProbeAck(stream=stream, number=number, written=written, unwritten_seconds=late_s)
    assert len(seal(ack, KEY)) <= MAX_BYTES
    assert unseal(seal(ack, KEY), ProbeAck, lambda _: KEY) == ack


@given(data=st.data(), number=COUNTS)
def test_a_datagram_that_was_changed_is_none(data: st.DataObject, number: int) -> None:
    sealed = seal(Probe(stream=1, number=number), KEY)
    at = data.draw(st.integers(0, len(sealed) - 1))
    changed = sealed[:at] + bytes([sealed[at] ^ data.draw(st.integers(1, 255))]) + sealed[at + 1 :]
    found = unseal(changed, Probe, lambda _: KEY)
    assert found is None or found == Probe(stream=1, number=number), "the same in other bytes is the same"


@given(st.binary(max_size=MAX_BYTES))
def test_noise_is_none(noise: bytes) -> None:
    assert unseal(noise, Probe, lambda _: KEY) is None


def test_another_key_no_key_and_the_question_sent_back_are_none() -> None:
    sealed = seal(Probe(stream=1, number=1), KEY)
    assert unseal(sealed, Probe, lambda _: OTHER) is None
    assert unseal(sealed, Probe, lambda _: b"") is None
    assert unseal(sealed, ProbeAck, lambda _: KEY) is None
