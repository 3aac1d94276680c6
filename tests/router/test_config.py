"""The router's flags."""

from __future__ import annotations

import socket

import pytest

from model_output.formats import ChatFormats
from router.config import parse_config
from runtime.settings import draw_number
from scheduling.placement import Placement
from scheduling.policies import NAMES


def test_policy_placement_and_weights_are_taken_by_name() -> None:
    config = parse_config(
        ["--model=m", "--policy=chunked", "--placement=conditional", "--tenant-weights=a=2,b=0.5"], 1
    )
    assert config.policy.name == "chunked"
    assert config.placement is Placement.CONDITIONAL
    assert [config.weights.of(tenant) for tenant in ("a", "b", "else")] == [2.0, 0.5, 1.0]


def test_slack_picks_paths_and_baselines_use_what_they_are_given() -> None:
    placements = {name: parse_config(["--model=m", f"--policy={name}"], 1).placement for name in NAMES}
    assert placements.pop("slack") is Placement.CONDITIONAL
    assert parse_config(["--model=m"], 1).placement is Placement.CONDITIONAL
    assert set(placements.values()) == {Placement.DISAGGREGATED}


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("a=-1", "is -1.0; accepted: from 0.001 to 1000"),
        ("a=0", "is 0.0; accepted: from 0.001 to 1000"),
        ("a=nan", "is nan; accepted: from 0.001 to 1000"),
        ("a", "has 'a'; accepted: NAME=NUMBER"),
    ],
)
def test_wrong_weights_are_refused_with_what_is_accepted(weights: str, said: str) -> None:
    with pytest.raises(ValueError, match="--tenant-weights") as refused:
        parse_config(["--model=m", f"--tenant-weights={weights}"], 1)
    assert said in str(refused.value)


def test_an_unknown_policy_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config(["--model=m", "--policy=fifo"], 1)
    assert "slack" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", " a", "a\n", "x" * 257])
def test_a_name_that_no_request_could_give_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="--served-model-name is"):
        parse_config(["--model=m", "--served-model-name", name], 1)


def test_formats_are_the_templates_unless_flags_name_others(capsys: pytest.CaptureFixture[str]) -> None:
    found = ChatFormats("hermes", "think")
    flags = ["--tool-format", "llama3_json", "--reasoning-format", "none"]
    assert parse_config(["--model=m"], 1).formats(found) == found
    assert parse_config(["--model=m", *flags], 1).formats(found) == ChatFormats("llama3_json", "")
    with pytest.raises(SystemExit):
        parse_config(["--model=m", "--tool-format", "xml"], 1)
    assert "'qwen3_coder'" in capsys.readouterr().err


def test_routers_that_are_given_no_name_have_names_of_their_own() -> None:
    """Process ids would not do: in containers they are all 1, and names of routers have to differ."""
    number, other = draw_number(), draw_number()
    name = parse_config(["--model=m"], number).router_id
    assert name == f"router-{socket.gethostname()}-{number}"
    assert number != other
    assert parse_config(["--model=m"], other).router_id != name
    assert parse_config(["--model=m", "--router-id=mine"], number).router_id == "mine"
