"""Which path a request goes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.placement import PathCandidate, choose_conditional, without_failed

OWN = PathCandidate("d0", ttft_s=0.2, worker_s=0.1, meets=True)
APART = PathCandidate("p0", ttft_s=0.1, worker_s=0.2, meets=True)

seconds = st.sampled_from([0.1, 0.2, 0.3])
paths = st.lists(
    st.builds(
        PathCandidate, st.sampled_from("pqdef"), seconds, seconds, st.booleans(), st.booleans(), st.booleans()
    ),
    max_size=5,
    unique_by=lambda path: path.worker_key,
)


def is_good(path: PathCandidate) -> bool:
    return path.meets and not path.crowds


@given(paths)
def test_a_good_path_is_taken_whenever_there_is_one(found: list[PathCandidate]) -> None:
    choice = choose_conditional(found)
    assert (choice is None) == (not found)
    if choice is not None:
        assert is_good(choice) == any(map(is_good, found))
        assert choice.crowds is False or all(entry.crowds for entry in found)


@given(paths)
def test_no_good_path_is_earlier_or_as_early_and_cheaper(found: list[PathCandidate]) -> None:
    choice = choose_conditional(found)
    if choice is None or not is_good(choice):
        return
    rivals = [entry for entry in found if is_good(entry) and entry.within_share >= choice.within_share]
    assert (choice.ttft_s, choice.worker_s) == min((rival.ttft_s, rival.worker_s) for rival in rivals)


@given(paths, st.randoms(use_true_random=False))
def test_the_order_of_the_paths_does_not_matter(found: list[PathCandidate], draw: object) -> None:
    shuffled = list(found)
    draw.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    assert choose_conditional(found) == choose_conditional(shuffled)


def test_a_path_that_crowds_is_taken_only_where_all_do() -> None:
    crowded = replace(APART, crowds=True)
    late = replace(OWN, meets=False)
    assert choose_conditional([crowded, late]) == late
    assert choose_conditional([crowded]) == crowded


def test_where_none_meets_the_earliest_is_offered() -> None:
    missed = [replace(OWN, meets=False), replace(APART, meets=False)]
    assert choose_conditional(missed) == missed[1]


def test_a_worker_past_its_prefill_share_is_left_alone() -> None:
    past = replace(OWN, within_share=False)
    assert choose_conditional([past, APART]) == APART
    assert choose_conditional([past, replace(APART, meets=False)]) == past


def test_a_path_that_failed_is_the_last_resort() -> None:
    failed, crowded = replace(APART, failed=2), replace(OWN, crowds=True, meets=False, failed=1)
    assert without_failed([failed, crowded]) == [crowded]
    assert without_failed([failed]) == [failed]
    assert without_failed([]) == []
