"""A prompt computed by one step loop and decoded by another, with the blocks copied by hand."""

from __future__ import annotations

import pytest

from engine.core.commands import Cancel, Decode, KVArrived, KVFailed, Prefill, Receive, Release
from engine.core.report import Filled, Received, StepReport
from scheduling.columns import TokenColumns
from scheduling.memory.block_hash import chain_root, hash_block, hash_blocks
from scheduling.request import FinishReason, SamplingParams, SequenceSpec, StopRules
from tests.engine.fake_runner import greedy
from tests.engine.loop_driver import GREEDY, VOCAB, Driver, spec

pytestmark = pytest.mark.usefixtures("both_ways")

SIZE = 4


def filled_blocks(reports: list[StepReport]) -> list[Filled]:
    return [filled for report in reports for filled in report.filled]


def source_blocks(source: Driver) -> list[int]:
    """Places of the offered blocks; offers have to come in order and without gaps."""
    blocks: list[int] = []
    for filled in filled_blocks(source.reports):
        assert filled.first_index == len(blocks)
        blocks.extend(filled.blocks)
    return blocks


def first_tokens(source: Driver) -> TokenColumns:
    """Return what the commit carries: the rows without their text."""
    (columns,) = [report.tokens for report in source.reports if report.tokens.handles]
    columns.text_lengths, columns.text_utf8 = [], b""
    return columns


def received(target: Driver) -> Received:
    (one,) = [row for report in target.reports for row in report.received]
    return one


def copy_blocks(source: Driver, target: Driver, num_blocks: int) -> None:
    """Copy the first blocks but those that the target holds, which it must not be given again."""
    told = received(target)
    for index, block in enumerate(source_blocks(source)[:num_blocks]):
        if index >= told.num_held:
            target.runner.pool[told.blocks[index]] = source.runner.pool[block]


def hand_over(source: Driver, target: Driver, request: SequenceSpec, num_verified: int | None = None) -> None:
    source.finish(Prefill(request))
    target.finish(Receive(request))
    count = len(received(target).blocks) if num_verified is None else num_verified
    copy_blocks(source, target, count)
    target.finish(KVArrived(request.handle, count, first_tokens(source)))
    source.finish(Release(request.handle))


def assert_same(target: Driver, request: SequenceSpec) -> None:
    alone = Driver()
    alone.finish(Decode(request))
    for choice in request.choices:
        assert target.rows(request.handle, choice) == alone.rows(request.handle, choice)
        assert target.text(request.handle, choice) == alone.text(request.handle, choice)


RANDOM = SamplingParams(
    temperature=0.9, seed=21, presence_penalty=0.4, repetition_penalty=1.2, logprobs=2, n=3
)


@pytest.mark.parametrize("prompt_tokens", [1, 4, 7, 8, 21])
@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_a_handed_over_sequence_goes_on_as_if_it_had_never_moved(
    prompt_tokens: int, sampling: SamplingParams
) -> None:
    source, target = Driver(token_budget=5), Driver()
    request = spec(1, list(range(prompt_tokens)), 9, sampling=sampling, choices=tuple(range(sampling.n)))
    hand_over(source, target, request)
    assert_same(target, request)
    for driver in (source, target):
        assert driver.freed() == [1]
        assert not driver.failures()
        driver.assert_at_rest()


@pytest.mark.parametrize("num_verified", range(7))
def test_nothing_is_decoded_from_blocks_that_were_not_verified(num_verified: int) -> None:
    """They are computed; the first token is not drawn again."""
    source, target = Driver(), Driver(token_budget=7)
    request = spec(1, list(range(22)), 9)
    source.finish(Prefill(request))
    told = first_tokens(source)
    # A first token that this model would not draw: that it is kept shows that nobody drew it again.
    told.token_ids = [(told.token_ids[0] + 1) % VOCAB]
    target.finish(Receive(request))
    target.runner.pool[list(received(target).blocks)] = 77
    copy_blocks(source, target, num_verified)
    target.turn(Decode(spec(2, [50], 6)))
    target.runner.batches.clear()
    target.finish(KVArrived(1, num_verified, told))
    assert target.tokens(2) == greedy([50], 6, VOCAB)
    assert target.tokens(1) == [
        told.token_ids[0],
        *greedy([*range(22), told.token_ids[0]], 8, VOCAB),
    ]
    computed = sum(tokens for _, tokens in target.runner.batches)
    assert computed == max(0, 22 - num_verified * SIZE) + 8 + 5
    target.assert_at_rest()


def test_filled_blocks_are_reported_with_identities_by_chunk() -> None:
    source = Driver(token_budget=6)
    prompt = list(range(15))
    source.finish(Prefill(spec(1, prompt, 4)))
    offers = filled_blocks(source.reports)
    assert [(f.first_index, len(f.blocks), f.complete) for f in offers] == [
        (0, 1, False),
        (1, 2, False),
        (3, 1, True),
    ]
    full = hash_blocks(chain_root("model", b""), prompt, SIZE)
    told = [block_hash for filled in offers for block_hash in filled.hashes]
    assert told == [*full, hash_block(full[-1], prompt[12:])]
    last = source.reports[-1]
    assert last.filled[-1].complete
    assert last.tokens.handles == [1]
    assert [p.handle for p in last.prefilled] == [1]


def test_cached_blocks_are_offered_before_the_first_chunk() -> None:
    source = Driver(token_budget=4)
    prompt = list(range(13))
    source.finish(Decode(spec(1, prompt, 1)))
    reports = source.finish(Prefill(spec(2, [*prompt, 50, 51, 52, 53], 3)))
    offers = filled_blocks(reports)
    assert [(f.first_index, len(f.blocks), f.complete) for f in offers] == [
        (0, 3, False),
        (3, 1, False),
        (4, 1, True),
    ]
    assert reports[0].filled[0].blocks == offers[0].blocks


def test_a_prefilled_sequence_keeps_its_blocks_until_released() -> None:
    source = Driver(num_blocks=6)
    source.finish(Prefill(spec(1, list(range(14)), 4)))
    blocks = source_blocks(source)
    source.finish(Decode(spec(2, [50, 51, 52], 5)))
    assert source.reports[-1].load.free_blocks == 2
    source.finish(Decode(spec(3, [50, 51, 52], 20)))
    # It went as far as the blocks that are left, and waits.
    assert len(source.tokens(3)) < 20
    assert source.reports[-1].load.preempted == 1
    assert source.runner.pool[blocks].reshape(-1, 2)[:14, 0].tolist() == list(range(14))
    source.finish(Release(1), Release(1), Release(77))
    assert source.freed() == [2, 1, 3]
    assert source.tokens(3) == greedy([50, 51, 52], 20, VOCAB)
    source.assert_at_rest()


def test_a_held_sequence_does_not_occupy_a_row() -> None:
    source = Driver(max_num_seqs=1)
    source.finish(*(Prefill(spec(handle, [handle, 2, 3], 4)) for handle in range(3)))
    assert [source.tokens(handle) for handle in range(3)] == [greedy([h, 2, 3], 1, VOCAB) for h in range(3)]
    source.finish(*(Release(handle) for handle in range(3)))
    source.assert_at_rest()


def test_choices_that_end_with_their_first_token_are_not_started() -> None:
    sampling = SamplingParams(temperature=1.0, seed=4, n=3)
    probe = Driver()
    probe.finish(Prefill(spec(1, [1, 2, 3], sampling=sampling, choices=(0, 1, 2))))
    ends = probe.tokens(1, 1)[0]
    request = spec(
        1, [1, 2, 3], sampling=sampling, choices=(0, 1, 2), stop=StopRules(6, stop_token_ids=(ends,))
    )
    source, target = Driver(), Driver()
    hand_over(source, target, request)
    assert source.rows(1, 1) == target.rows(1, 1) == [(0, ends, FinishReason.STOP)]
    assert_same(target, request)
    target.assert_at_rest()


def test_a_request_of_one_token_ends_where_its_kv_arrives() -> None:
    source, target = Driver(), Driver()
    hand_over(source, target, spec(1, list(range(5)), 1))
    assert source.rows(1) == target.rows(1)
    assert source.rows(1)[0][2] == FinishReason.LENGTH
    assert target.freed() == [1]
    target.assert_at_rest()


def test_the_receiver_pins_what_it_holds_and_expects_the_rest() -> None:
    target = Driver()
    prompt = list(range(19))
    target.finish(Decode(spec(1, prompt[:13], 1)))
    target.reports.clear()
    request = spec(2, prompt, 6)
    target.finish(Receive(request))
    told = received(target)
    assert told.num_held == 3
    full = hash_blocks(chain_root("model", b""), prompt, SIZE)
    assert told.hashes == (*full, hash_block(full[-1], prompt[16:]))
    assert len(set(told.blocks)) == 5
    source = Driver()
    source.finish(Prefill(request))
    copy_blocks(source, target, 5)
    target.finish(KVArrived(2, 5, first_tokens(source)))
    assert target.tokens(2) == greedy(prompt, 6, VOCAB)
    assert target.cached_tokens() == [12]
    target.assert_at_rest()


def test_held_blocks_are_not_recomputed_if_nothing_was_verified() -> None:
    source, target = Driver(), Driver()
    prompt = list(range(19))
    target.finish(Decode(spec(1, prompt[:13], 1)))
    source.finish(Prefill(spec(2, prompt, 6)))
    target.finish(Receive(spec(2, prompt, 6)))
    target.runner.batches.clear()
    target.finish(KVArrived(2, 0, first_tokens(source)))
    assert target.runner.batches[0] == (1, 7)
    assert target.tokens(2) == greedy(prompt, 6, VOCAB)


def test_received_blocks_serve_the_next_request_as_prefix() -> None:
    source, target = Driver(), Driver()
    hand_over(source, target, spec(1, list(range(16)), 3))
    target.finish(Decode(spec(2, [*range(16), 9], 4)))
    assert target.cached_tokens()[-1] == 16
    assert target.tokens(2) == greedy([*range(16), 9], 4, VOCAB)


def test_a_failed_receive_is_never_an_answer() -> None:
    target = Driver()
    target.finish(Receive(spec(1, list(range(9)), 6)), Decode(spec(2, [1], 4)))
    assert target.reports[-1].load.waiting == 1
    target.finish(KVFailed(1, "the source is gone"), KVFailed(55, "nobody knows it"))
    assert target.failures() == {1: "HANDOFF: the source is gone"}
    assert target.rows(1) == []
    assert target.tokens(2) == greedy([1], 4, VOCAB), "its neighbour goes on"
    assert target.freed() == [2, 1]
    target.assert_at_rest()


@pytest.mark.parametrize("end", ["arrived", "failed"])
def test_blocks_that_a_copy_may_still_write_to_are_given_to_nobody(end: str) -> None:
    target = Driver(num_blocks=8)
    target.finish(Receive(spec(1, list(range(20)), 6)))
    target.finish(Cancel(1))
    target.finish(Cancel(1))
    assert target.freed() == []
    target.finish(Decode(spec(2, [1] * 15, 12)))
    assert target.tokens(2) == []
    told = TokenColumns([1], [0], [0], [5], [0])
    target.finish(KVArrived(1, 5, told) if end == "arrived" else KVFailed(1, "cancelled"))
    assert target.freed() == [1, 2]
    assert target.tokens(1) == []
    assert target.tokens(2) == greedy([1] * 15, 12, VOCAB)
    assert not target.failures()
    target.assert_at_rest()


@pytest.mark.parametrize("turns", [1, 2, 4])
def test_a_prefill_is_cancelled_in_every_phase(turns: int) -> None:
    source = Driver(token_budget=4)
    source.turn(Prefill(spec(1, list(range(14)), 6)))
    for _ in range(turns - 1):
        source.turn()
    source.finish(Cancel(1))
    assert source.freed() == [1]
    source.assert_at_rest()


def test_arrived_sequences_do_not_wait_behind_prompts() -> None:
    source, target = Driver(), Driver(max_num_seqs=1)
    request = spec(1, list(range(5)), 6)
    source.finish(Prefill(request))
    target.turn(Receive(request), Decode(spec(2, [1], 4)))
    target.turn(Decode(spec(3, [2], 4)), KVArrived(1, 0, first_tokens(source)))
    target.finish()
    order = list(dict.fromkeys(handle for report in target.reports for handle in report.tokens.handles))
    assert order == [2, 1, 3]


def test_a_resumed_sequence_is_handed_over_with_its_output() -> None:
    whole = Driver()
    sampling = SamplingParams(temperature=0.9, seed=8, frequency_penalty=0.9)
    whole.finish(Decode(spec(1, [1, 2, 3], 16, sampling=sampling)))
    source, target = Driver(), Driver()
    request = spec(1, [1, 2, 3], 16, sampling=sampling, outputs=whole.tokens(1)[:7])
    hand_over(source, target, request)
    assert target.rows(1) == whole.rows(1)[7:]
    target.assert_at_rest()


def test_logprobs_of_the_first_tokens_come_again() -> None:
    source, target = Driver(), Driver()
    hand_over(source, target, spec(1, [4, 2], 3, sampling=RANDOM, choices=(2, 5)))
    told, again = first_tokens(source), target.reports[1].tokens
    assert list(told.logprob_rows) == [0, 1]
    assert list(again.logprob_rows)[:2] == [0, 1]
    assert list(again.logprobs)[:2] == list(told.logprobs)
    assert list(again.top_token_ids)[:4] == list(told.top_token_ids)


def test_reports_of_blocks_to_copy_say_what_the_copies_wait_for() -> None:
    source, target = Driver(token_budget=5), Driver()
    hand_over(source, target, spec(1, list(range(21)), 9))
    for report in source.reports + target.reports:
        assert (report.received_behind is not None) == bool(report.received)
    assert any(report.received_behind for report in target.reports)
