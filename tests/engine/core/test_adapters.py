"""Which adapter is in which slot, and which one has to go: whatever sequences come and go, in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.adapters import AdapterSlots, SlotChanges

NAMES = "abcdef"


def take(slots: AdapterSlots, handle: int, digest: str) -> SlotChanges:
    """Let a sequence that cannot run wait; return what follows, its own handle included if it can."""
    if slots.take(handle, digest):
        return SlotChanges(ready=[handle])
    return slots.advance()


def test_the_adapter_unused_for_longest_makes_room() -> None:
    slots = AdapterSlots(2, loadable=NAMES)
    for handle, digest in enumerate("ab"):
        (load,) = take(slots, handle, digest).loads
        assert load.evicted is None
        assert slots.end_load(digest) == [handle]
    slots.release(0)
    slots.release(1)
    assert take(slots, 2, "a").ready == [2]
    slots.release(2)
    (load,) = take(slots, 3, "c").loads
    assert load.evicted == "b"


def test_an_adapter_that_a_sequence_uses_stays() -> None:
    slots = AdapterSlots(1, loadable=NAMES)
    take(slots, 1, "a")
    slots.end_load("a")
    assert take(slots, 2, "b") == SlotChanges()
    assert slots.slot_of == {"a": 0}
    slots.release(1)
    (load,) = slots.advance().loads
    assert (load.digest, load.slot, load.evicted) == ("b", 0, "a")


def test_newcomers_do_not_keep_an_adapter_for_ever() -> None:
    """With one slot and a steady stream for one adapter, another one would never get it."""
    slots = AdapterSlots(1, loadable=NAMES)
    take(slots, 1, "a")
    slots.end_load("a")
    take(slots, 2, "b")
    assert take(slots, 3, "a").ready == []
    slots.release(1)
    assert [load.digest for load in slots.advance().loads] == ["b"]
    assert slots.end_load("b") == [2]
    slots.release(2)
    assert [load.digest for load in slots.advance().loads] == ["a"]
    assert slots.end_load("a") == [3]


def test_an_adapter_yields_no_more_once_nobody_waits_for_its_slot() -> None:
    slots = AdapterSlots(1, loadable=NAMES)
    take(slots, 1, "a")
    slots.end_load("a")
    take(slots, 2, "b")
    take(slots, 3, "a")
    slots.release(2)
    assert slots.advance().ready == [3]


def test_others_get_the_slot_of_an_adapter_that_cannot_be_loaded() -> None:
    slots = AdapterSlots(1, loadable=NAMES)
    take(slots, 1, "a")
    take(slots, 2, "a")
    take(slots, 3, "b")
    assert slots.fail_load("a") == [1, 2]
    assert [load.digest for load in slots.advance().loads] == ["b"]
    slots.check_integrity({3})


def test_an_adapter_whose_sequences_are_gone_is_there_for_the_next() -> None:
    slots = AdapterSlots(1, loadable=NAMES)
    take(slots, 1, "a")
    slots.release(1)
    assert slots.end_load("a") == []
    assert take(slots, 2, "a").ready == [2]


class Slots(RuleBasedStateMachine):
    """Sequences come, loads end well or not, and sequences end in any phase."""

    @initialize(num_slots=st.integers(1, 4))
    def begin(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.slots = AdapterSlots(num_slots, loadable=NAMES)
        self.next_handle = 0
        self.running: dict[int, str] = {}
        self.waiting: dict[int, str] = {}
        self.loading: dict[str, int] = {}

    def run(self, handles: list[int]) -> None:
        for handle in handles:
            self.running[handle] = self.waiting.pop(handle)

    def follow(self, changes: SlotChanges) -> None:
        for load in changes.loads:
            assert load.evicted not in self.running.values(), "a sequence would lose its adapter"
            assert load.slot not in self.loading.values()
            assert load.digest in self.waiting.values(), "nobody wants it"
            self.loading[load.digest] = load.slot
        self.run(changes.ready)

    @rule(digest=st.sampled_from(NAMES))
    def come(self, digest: str) -> None:
        handle, self.next_handle = self.next_handle, self.next_handle + 1
        self.waiting[handle] = digest
        if self.slots.take(handle, digest):
            self.run([handle])
        else:
            self.follow(self.slots.advance())

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from([*self.running, *self.waiting]))
        self.running.pop(handle, None)
        self.waiting.pop(handle, None)
        self.slots.release(handle)
        self.follow(self.slots.advance())

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), fails=st.booleans())
    def load(self, data: st.DataObject, fails: bool) -> None:
        digest = data.draw(st.sampled_from(list(self.loading)))
        slot = self.loading.pop(digest)
        waiting = [handle for handle, wanted in self.waiting.items() if wanted == digest]
        if fails:
            assert self.slots.fail_load(digest) == waiting
            for handle in waiting:
                del self.waiting[handle]
        else:
            assert self.slots.end_load(digest) == waiting
            assert self.slots.slot_of[digest] == slot
            self.run(waiting)
        self.follow(self.slots.advance())

    @invariant()
    def everybody_has_what_it_runs_with(self) -> None:
        self.slots.check_integrity({**self.running, **self.waiting})
        assert set(self.running.values()) <= self.slots.slot_of.keys()
        assert len(self.slots.slot_of) + len(self.loading) <= self.num_slots

    @invariant()
    def nobody_waits_beside_a_slot_without_use(self) -> None:
        used = {*self.running.values(), *self.loading}
        unmet = set(self.waiting.values()) - used
        assert not unmet or len(used) >= self.num_slots

    def teardown(self) -> None:
        """Whoever waits is served once those before it end."""
        for _ in range(4 * (len(self.waiting) + len(self.running) + 1)):
            for digest in list(self.loading):
                self.loading.pop(digest)
                self.run(self.slots.end_load(digest))
                self.follow(self.slots.advance())
            for handle in list(self.running):
                del self.running[handle]
                self.slots.release(handle)
                self.follow(self.slots.advance())
        assert not self.waiting


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
