from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.__main__ import main
from benchmarks.plot import briefly_named, load, merged
from sim.__main__ import main as simulate
from sim.reporting.results import figure, write
from tests.sim.reporting.test_results import results

ARGUMENTS = "--workload burst --policy slack --fleet 1d --load 0.5 --duration-s 5 --profile h200-llama-3.1-8b"


@pytest.fixture(scope="session")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sim") / "sim.json"
    assert simulate(["simulate", *ARGUMENTS.split(), "--json", str(path)]) == 0
    return path


def test_a_simulation_is_read_as_a_measurement(simulation: Path) -> None:
    found = load(simulation)
    (run,) = found.runs
    metrics = json.loads(simulation.read_text())["runs"][0]["metrics"]
    assert figure(run.summary, "goodput_per_s") == metrics["goodput_per_s"]
    assert figure(run.summary, "ttft.p99") == metrics["ttft"]["p99"]
    assert figure(run.summary, "total_tokens_per_s") is None, "a simulation does not tell"


def test_a_live_and_a_simulated_run_share_a_page(simulation: Path, tmp_path: Path) -> None:
    live, out = tmp_path / "live.json", tmp_path / "page.html"
    write(results(), live)
    assert main(["plot", str(live), str(simulation), "--out", str(out)]) == 0
    assert out.read_text().count("<svg") >= 2


def test_the_picture_names_each_arm_by_its_policy(simulation: Path, tmp_path: Path) -> None:
    out = tmp_path / "goodput.svg"
    assert main(["plot", str(simulation), "--out", str(out)]) == 0
    root = ET.fromstring(out.read_text())
    texts = {"".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"slack", "offered (requests/s)", "good (requests/s)"} <= texts
    found = load(simulation)
    twice = replace(found, runs=(*found.runs, replace(found.runs[0], arm="slack/aggregated 2d")))
    assert briefly_named(twice) == twice


def test_a_picture_has_a_dark_colour_for_its_black_and_its_white(simulation: Path, tmp_path: Path) -> None:
    """Every grey of the plot is replaced on a dark page, or lines and labels would vanish."""
    out = tmp_path / "goodput.svg"
    main(["plot", str(simulation), "--out", str(out)])
    rules, _, drawn = out.read_text().partition("</style>")
    greys = {
        colour
        for colour in re.findall(r"(?:fill|stroke): #(\w{6})", drawn)
        if len({*re.findall("..", colour)}) == 1
    }
    assert greys
    assert not {grey for grey in greys if f': #{grey}"]' not in rules}


def test_a_run_that_two_files_tell_of_is_refused() -> None:
    with pytest.raises(ValueError, match="ours at 1/s with seed 1 is in two files"):
        merged([results(), replace(results(), title="again")])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"profile": 1, "runs": [{}]}', '{"kind": "baton bench"}'])
def test_another_file_is_refused_by_name(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    assert main(["plot", str(path), "--out", str(tmp_path / "page.html")]) == 2
    assert "other.json" in capsys.readouterr().err
