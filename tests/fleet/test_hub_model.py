"""A fleet of a model of the hub: fetched once, by one process, and served under its name."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton import AsyncClient, Stop
from baton.fleet import Fleet, FleetEvent, FleetSpec
from baton.fleet.processes.errors import ProcessFailed
from baton.fleet.processes.events import ProcessReady, ProcessStarting
from tests.hub import MODEL, ROOT, Hub, commit_of, environment_of, names_in, serving, snapshot_of
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

FIRST = commit_of("first")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub()) as running:
        yield running


@pytest.fixture
def new_hub_fleet(hub: Hub, tmp_path: Path) -> Callable[..., Fleet]:
    """Return a function that makes a fleet with a cache of its own."""

    def make(on_event: Callable[[FleetEvent], None] = lambda _: None, **settings: Any) -> Fleet:
        environment = environment_of(hub.url, tmp_path / "hf", XDG_CACHE_HOME=str(tmp_path / "cache"))
        own: dict[str, Any] = {"model": Path(MODEL), "run_dir": tmp_path / "run", "environment": environment}
        return Fleet(FleetSpec(**(own | settings)), on_event)

    return make


@pytest.mark.long
async def test_a_fleet_serves_a_model_of_the_hub_by_its_name(
    hub: Hub, new_hub_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    hub.bytes_per_s = 4e6
    events: list[FleetEvent] = []
    async with new_hub_fleet(events.append, gateways=1) as fleet:
        ready = [event for event in events if isinstance(event, ProcessReady)]
        assert (ready[0].name, ready[0].address) == ("model", f"{MODEL}@{FIRST}")
        assert "model" not in {process.name for process in fleet.processes}
        doing = [e.doing for e in events if isinstance(e, ProcessStarting) and e.name == "model"]
        assert any(" MB/s, " in each and each.endswith(" of 7 MB") for each in doing), doing
        weights = len(hub.files["model.safetensors"])
        assert hub.sent("model.safetensors") == weights
        assert len(hub.served) == len(names_in(snapshot_of(tmp_path / "hf", FIRST)))
        async with AsyncClient(fleet.router_addresses, model=MODEL) as client:
            completion = await client.complete("The list is", stop=Stop(max_tokens=4))
            assert completion.choices[0].text
        async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
            models = await http.get(f"{fleet.gateway_urls[0]}/v1/models")
            assert [model["id"] for model in models.json()["data"]] == [MODEL]
            one = await http.get(f"{fleet.gateway_urls[0]}/v1/models/{MODEL}")
            assert one.json()["id"] == MODEL
        # A revision that moves, or a hub that is gone, changes nothing for a fleet that runs.
        hub.revisions["main"] = commit_of("second")
        hub.asked.clear()
        await fleet.replace("decode-0")
        assert hub.asked == []


def test_baton_up_takes_the_name_of_a_model_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    environment = environment_of(hub.url, tmp_path / "hf", XDG_CACHE_HOME=str(tmp_path / "cache"))
    baton, run = [sys.executable, "-m", "baton.cli"], ["--run-dir", str(tmp_path / "run")]
    own = [
        "--model",
        MODEL,
        "--draft-model",
        f"{MODEL}@{FIRST}",
        "--prefill",
        "0",
        "--port",
        "0",
        "--no-http",
    ]
    with subprocess.Popen(
        [*baton, "up", *own, *run], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as up:
        assert up.stdout is not None
        shown = list(iter(up.stdout.readline, "Ctrl-C stops everything\n"))
        asked = [*baton, "generate", *run, "The list is", "--max-tokens", "4", "--model", MODEL]
        answer = subprocess.run(
            asked, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=PATIENCE_S
        )
        up.send_signal(signal.SIGINT)
        up.communicate()
    assert up.returncode == 0
    for name in ("model     ", "draft     "):
        assert any(line.startswith(f"✓ {name} {MODEL}@{FIRST}") for line in shown), shown
    assert len(hub.downloads("model.safetensors")) == 1
    assert answer.stdout.strip()


async def test_a_fleet_of_a_model_that_does_not_exist_starts_nothing(
    new_hub_fleet: Callable[..., Fleet],
) -> None:
    fleet = new_hub_fleet(model=Path("demo/other"))
    with pytest.raises(ProcessFailed) as failed:
        async with fleet:
            pass
    assert (failed.value.name, failed.value.exit_code) == ("model", 4)
    assert failed.value.tail.splitlines()[-1].startswith("model demo/other@main: ")
    assert [process.name for process in fleet.processes] == ["model"]


async def test_timed_workers_need_no_weights(
    hub: Hub, new_hub_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    async with new_hub_fleet(timed="demo-cpu", prefill=0, router_processes=2) as fleet:
        assert fleet.router_addresses
    assert "model.safetensors" not in names_in(snapshot_of(tmp_path / "hf", FIRST))
