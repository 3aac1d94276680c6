"""Every measurement is a command, takes the shared flags and says in its help what it measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import COMMANDS, flags, main
from benchmarks.flags import FIVE_SEEDS

MEASUREMENTS = sorted(set(COMMANDS) - {"plot"})


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_every_measurement_takes_the_shared_flags(name: str) -> None:
    parser = flags([name])
    args = parser.parse_args([name, "--seeds", "3,1", "4", "--json", "out.json"])
    assert (args.seeds, args.json) == ([3, 1, 4], Path("out.json"))
    assert parser.parse_args([name]).seeds[:3] == list(FIVE_SEEDS[:3])


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert len(capsys.readouterr().out) > 200


@pytest.mark.parametrize("seeds", [["1", "1"], ["1,2", "2"], ["-1"], ["x"]])
def test_seeds_that_repeat_are_refused(seeds: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["decisions", "--seeds", *seeds])


def test_a_claim_that_there_is_not_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "magic"]) == 2
    assert "claim is 'magic'; accepted: grid" in capsys.readouterr().err
