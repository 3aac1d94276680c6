"""Equal hashes mean equal model, salt, adapter and tokens up to the block's end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.memory.block_hash import HASH_BYTES, chain_root, hash_block, hash_blocks

TOKENS = st.lists(st.integers(0, 2), max_size=24)
SIZES = st.integers(1, 5)


@given(TOKENS, TOKENS, SIZES)
def test_hashes_agree_exactly_as_far_as_the_tokens_do(first: list[int], second: list[int], size: int) -> None:
    root = chain_root("model", b"")
    for index, (entry, other) in enumerate(
        zip(hash_blocks(root, first, size), hash_blocks(root, second, size), strict=False)
    ):
        end = (index + 1) * size
        assert (entry == other) == (first[:end] == second[:end])


@given(TOKENS, SIZES)
def test_only_full_blocks_are_hashed_each_from_the_one_before(tokens: list[int], size: int) -> None:
    root = chain_root("model", b"salt")
    hashes = hash_blocks(root, tokens, size)
    assert len(hashes) == len(tokens) // size
    for index, block_hash in enumerate(hashes):
        parent = hashes[index - 1] if index else root
        assert block_hash == hash_block(parent, tokens[index * size : (index + 1) * size])
        assert len(block_hash) == HASH_BYTES


NAMED = st.tuples(st.binary(max_size=40), st.sampled_from(["", "0" * 32, "1" * 32]))


@given(NAMED, NAMED)
def test_no_adapter_shares_a_chain_with_another_or_the_base(
    first: tuple[bytes, str], second: tuple[bytes, str]
) -> None:
    """Whatever salts are: no salt looks like another one with an adapter."""
    roots = [chain_root("model", salt, adapter) for salt, adapter in (first, second)]
    assert (roots[0] == roots[1]) == (first == second)
    assert chain_root("model", first[0], "") == chain_root("model", first[0])


def test_model_and_salt_start_their_own_chains() -> None:
    roots = {chain_root(model, salt) for model in ("a", "b") for salt in (b"", b"b", b"\0")}
    assert len(roots) == 6
    assert chain_root("model", b"salt") == chain_root("model", b"salt")


def test_a_block_is_the_same_whatever_holds_its_tokens() -> None:
    root = chain_root("model", b"")
    assert hash_block(root, [1, 2, 3]) == hash_block(root, (1, 2, 3))


def test_a_partial_block_is_not_its_full_one() -> None:
    root = chain_root("model", b"")
    assert hash_block(root, [1, 2]) != hash_block(root, [1, 2, 0])
