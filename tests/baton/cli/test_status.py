"""`baton status`, `baton health` and what `baton up` refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from baton.cli.program import main
from baton.operators.v1 import fleet_pb2
from tests.baton.scripted_service import ScriptedRouter


def test_status_prints_one_snapshot_when_nobody_watches(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.answers["Describe"] = fleet_pb2.DescribeResponse(model_name="demo", block_size=16)
    worker = fleet_pb2.WorkerStatus(worker_id="decode-0", connected=True, num_blocks=100)
    router.snapshots = [fleet_pb2.WatchResponse(router_id="router-0", workers=[worker])]
    assert main(["status", "--address", router.address]) == 0
    out = capsys.readouterr().out
    assert "decode-0" in out
    assert "KV blocks of 16" in out
    assert main(["status", "--json", "--once", "--address", router.address]) == 0
    assert json.loads(capsys.readouterr().out)["workers"][0]["worker_id"] == "decode-0"


def test_health_of_a_server_without_the_service_is_not_healthy(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", router.address]) == 3
    assert "UNIMPLEMENTED" in capsys.readouterr().out


def test_a_model_that_is_no_folder_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--model", str(tmp_path)]) == 2
    assert "it must be a folder with a model's config.json" in capsys.readouterr().err


def test_health_imports_nothing_that_takes_long(router: ScriptedRouter) -> None:
    script = (
        "import sys; from baton.cli.program import main; main(sys.argv[1:]);"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, "health", router.address], capture_output=True, text=True, check=True
    )
    assert {"rich", "torch", "numpy"}.isdisjoint(run.stdout.split())
