"""Every action of a core is carried out, or known to need nothing: a forgotten action stalls requests."""

from typing import get_args

from router.core.model.actions import Action
from sim.play.simulation import Simulation
from sim.spec import FleetShape, SimSpec
from tests.sim.conftest import make_profile, make_trace

HEARD_BY_CLIENTS = {
    "TellQuoted",
    "TellPromptLogprobs",
    "TellLeaving",
    "TellRetrying",
    "Relay",
    "TellQueued",
    "TellChoiceFinished",
    "TellFinished",
}
COUNTED = {"RequestRefused", "RequestShed", "AttemptFailed", "GroupPreempted", "GroupMigrated"}
LOGGED = {"PromiseBroken", "StoreChanged"}
NEEDLESS = {"Renew", "TakeHolds"}
"""Neither a simulated router nor a simulated store dies: nothing expires, and nothing is forgotten."""


def test_every_action_is_carried_out_or_known_to_need_no_doing() -> None:
    simulation = Simulation(SimSpec(make_profile(), FleetShape(0, 1), make_trace(1, 1.0)))
    (shell,) = simulation._shells
    done = {action.__name__ for action in shell._table}
    left = {action.__name__ for action in get_args(Action)} - done
    assert left <= HEARD_BY_CLIENTS | COUNTED | LOGGED | NEEDLESS
