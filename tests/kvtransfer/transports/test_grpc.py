"""Blocks cut into pieces are put together again, and nothing else is."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.errors import ProtocolError
from kvtransfer.receiver_handoff import BlockCopy
from kvtransfer.transports.grpc import PieceWriter, cut_pieces


class BytesPool:
    """Blocks in a bytearray."""

    fd = None

    def __init__(self, num_blocks: int, block_bytes: int) -> None:
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self.memory = bytearray(num_blocks * block_bytes)

    def block_bytes_view(self, block: int) -> memoryview:
        return memoryview(self.memory)[block * self.block_bytes : (block + 1) * self.block_bytes]


def copies_of(indexes: list[int]) -> list[BlockCopy]:
    return [BlockCopy(index, 0, place, 0) for place, index in enumerate(indexes)]


@given(
    contents=st.integers(1, 9).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=6)
    ),
    piece_bytes=st.integers(1, 40),
)
def test_pieces_of_any_size_put_together_are_the_blocks(contents: list[bytes], piece_bytes: int) -> None:
    indexes = list(range(10, 10 + len(contents)))
    pool = BytesPool(len(contents), len(contents[0]))
    writer = PieceWriter(pool, copies_of(indexes))
    views = ((index, memoryview(content)) for index, content in zip(indexes, contents, strict=True))
    pieces = list(cut_pieces(views, piece_bytes))
    for index, offset, data in pieces:
        writer.write(index, offset, data)
    writer.check_complete()
    assert bytes(pool.memory) == b"".join(contents)
    assert all(len(data) == piece_bytes for _, _, data in pieces[:-1])


def test_a_block_is_read_only_when_its_piece_is_asked_for() -> None:
    read: list[int] = []

    def lazily() -> Iterator[tuple[int, memoryview]]:
        for index in range(3):
            read.append(index)
            yield index, memoryview(bytes(4))

    pieces = cut_pieces(lazily(), 4)
    next(pieces)
    assert read == [0]


@pytest.mark.parametrize(
    ("piece", "sentence"),
    [
        ((8, 0, b"abcd"), "a piece of block 8 at 0 came"),
        ((7, 1, b"abc"), "a piece of block 7 at 1 came"),
        ((7, 0, b"abcdefghi"), "1 bytes came after the last block"),
    ],
)
def test_a_piece_out_of_place_is_refused(piece: tuple[int, int, bytes], sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        PieceWriter(BytesPool(2, 4), copies_of([7, 8])).write(*piece)


def test_a_fetch_that_ends_early_is_noticed() -> None:
    writer = PieceWriter(BytesPool(2, 4), copies_of([7, 8]))
    writer.write(7, 0, b"abcdef")
    with pytest.raises(ProtocolError, match="the fetch ended in block 8 at 2"):
        writer.check_complete()


def test_a_piece_after_the_last_one_is_refused() -> None:
    writer = PieceWriter(BytesPool(1, 4), copies_of([7]))
    writer.write(7, 0, b"abcd")
    with pytest.raises(ProtocolError, match="came after the last one"):
        writer.write(8, 0, b"x")
