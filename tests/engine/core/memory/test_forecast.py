"""Memory is filled by what outputs are expected to need."""

from __future__ import annotations

from engine.core.commands import Decode, Prefill, Receive
from scheduling.request import StopRules
from tests.engine.loop_driver import RESERVING, Driver, spec


def after_outputs_of(length: int, num_blocks: int) -> Driver:
    """An engine whose outputs had one length so far."""
    driver = Driver(num_blocks=num_blocks, max_num_seqs=16)
    driver.finish(*(Decode(spec(1000 + n, [n], length)) for n in range(10)))
    return driver


def test_more_run_at_once_where_outputs_are_short() -> None:
    wanted = [Decode(spec(handle, [handle, 1], 40)) for handle in range(8)]
    short, long = after_outputs_of(4, num_blocks=24), after_outputs_of(39, num_blocks=24)
    for driver in (short, long):
        driver.turn(*wanted)
    assert short.reports[-1].load.running == 8
    assert 1 < long.reports[-1].load.running < 8


def test_without_examples_nothing_starts_that_could_outgrow_the_pool() -> None:
    driver = Driver(num_blocks=24)
    driver.turn(*(Decode(spec(handle, [handle, 1], 40)) for handle in range(8)))
    assert driver.reports[-1].load.running == 2
    driver.finish()
    assert not any(report.preempted for report in driver.reports)


def test_a_demanded_length_is_believed_and_teaches_nothing() -> None:
    driver = Driver(num_blocks=24)
    demanded = StopRules(max_tokens=4, ignore_eos=True)
    driver.finish(*(Decode(spec(1000 + n, [n], stop=demanded)) for n in range(10)))
    driver.turn(*(Decode(spec(handle, [handle, 1], 40)) for handle in range(8)))
    assert driver.reports[-1].load.running == 2


def test_blocks_of_others_leave_less_room() -> None:
    driver = after_outputs_of(4, num_blocks=24)
    driver.turn(Prefill(spec(20, list(range(40)), 4)), Receive(spec(21, list(range(40, 80)), 40)))
    driver.turn(*(Decode(spec(handle, [handle, 1], 9)) for handle in range(8)))
    assert driver.reports[-1].load.running < 4


def test_only_the_last_block_of_a_sequence_has_places_to_spare() -> None:
    for driver in (Driver(num_blocks=40, block_size=4), after_outputs_of(6, num_blocks=40)):
        driver.turn(*(Decode(spec(handle, [handle] * (handle + 1), 30)) for handle in range(8)))
        while driver.reports[-1].load.running and len(driver.reports) < 200:
            # Every running choice has had its block for the token that the next step writes, or will get it.
            load = driver.reports[-1].load
            num_used = driver.blocks.num_blocks - driver.blocks.num_unreferenced_blocks
            spare = num_used * 4 - (load.context_tokens - load.running)
            if load.waiting == 0:
                assert 0 <= spare < 4 * load.running
            driver.turn()


def test_what_a_policy_promises_at_most_is_never_short() -> None:
    driver = Driver(num_blocks=24, policy=RESERVING)
    driver.finish(*(Decode(spec(handle, [handle, 1], 40)) for handle in range(8)))
    assert not any(report.preempted for report in driver.reports)
    assert max(report.load.running for report in driver.reports) == 2
    driver.assert_at_rest()
