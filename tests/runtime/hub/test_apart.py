"""Services that are started by themselves fetch what they need, or say in one sentence why they cannot."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hub import MODEL, ROOT, Hub, commit_of, environment_of, names_in, run_fetch, snapshot_of
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

LOCATE = """
import json, sys
from pathlib import Path
from runtime.hub.apart import Caller, FetchFailed, located
from runtime.hub.contents import Scope
try:
    path, model = located(Path(sys.argv[1]), Scope(sys.argv[2]), Caller("router", "router-1", "info", "json"))
except FetchFailed as failed:
    sys.exit(failed.exit_code)
print("FOUND", json.dumps([str(path), str(model)]))
"""
FIRST = commit_of("first")


def locate(
    hub: Hub, cache: Path, model: str, scope: str = "facts", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOCATE, model, scope],
        env=environment_of(hub.url, cache, PYTHONPATH=str(ROOT), **environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def test_a_service_gets_the_folder_and_the_commit(hub: Hub, cache: Path) -> None:
    run = locate(hub, cache, MODEL)
    assert run.returncode == 0, run.stderr
    (found,) = [line for line in run.stdout.splitlines() if line.startswith("FOUND ")]
    assert json.loads(found.removeprefix("FOUND ")) == [
        str(snapshot_of(cache, FIRST)),
        f"{MODEL}@{FIRST}",
    ]
    assert "model.safetensors" not in names_in(snapshot_of(cache, FIRST))
    (line,) = [line for line in run.stderr.splitlines() if "model_found" in line]
    logged = json.loads(line)
    assert (logged["service"], logged["revision"], logged["commit"]) == ("router-1", "main", FIRST)


def test_its_start_is_reported_as_its_own(hub: Hub, cache: Path) -> None:
    run = locate(hub, cache, MODEL)
    reports = [line for line in run.stdout.splitlines() if not line.startswith("FOUND ")]
    assert reports
    assert all(line.startswith("STARTING router router-1 done=") for line in reports)


def test_a_folder_is_left_as_it_is(hub: Hub, cache: Path, tmp_path: Path) -> None:
    run = locate(hub, cache, str(tmp_path))
    assert run.stdout == f'FOUND ["{tmp_path}", "None"]\n'
    assert hub.asked == []


def test_offline_a_service_only_reads_the_cache(hub: Hub, cache: Path) -> None:
    """In containers, the cache is mounted so that services cannot write to it."""
    assert run_fetch(hub, cache).returncode == 0
    hub.asked.clear()
    before = {path: path.lstat().st_mtime_ns for path in cache.rglob("*")}
    run = locate(hub, cache, MODEL, "all", HF_HUB_OFFLINE="1")
    assert f"{MODEL}@{FIRST}" in run.stdout, run.stderr
    assert "model_from_cache" not in run.stderr
    assert {path: path.lstat().st_mtime_ns for path in cache.rglob("*")} == before
    assert hub.asked == []


def test_a_refusal_is_the_last_line_and_the_exit_code(hub: Hub, cache: Path) -> None:
    run = locate(hub, cache, "demo/other")
    assert run.returncode == 4
    assert run.stderr.splitlines()[-1].startswith("model demo/other@main: ")
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_download_ends_with_its_service(hub: Hub, cache: Path, number: signal.Signals) -> None:
    hub.bytes_per_s = 2e5
    service = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import signal; signal.signal(signal.SIGINT, signal.SIG_DFL){LOCATE}",
            MODEL,
            "all",
        ],
        env=environment_of(hub.url, cache, PYTHONPATH=str(ROOT)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    give_up = time.monotonic() + 60
    while not any(
        path.startswith("/stored/") and path.endswith("model.safetensors") for _, path in hub.asked
    ):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    service.send_signal(number)
    service.wait(10)
    while not hub.downloads("model.safetensors"):  # the server notices that nobody reads any more
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert hub.sent("model.safetensors") < 5_000_000


@pytest.mark.parametrize("module", ["router", "prefill_worker", "decode_worker"])
def test_every_service_takes_a_name_of_the_hub(hub: Hub, cache: Path, module: str) -> None:
    command = [sys.executable, "-m", module, "--redis", "redis://127.0.0.1:1/0", "--listen", "127.0.0.1:0"]
    run = subprocess.run(
        [*command, "--model", "demo/other"],
        env=environment_of(hub.url, cache),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 4, run.stderr
    assert run.stderr.splitlines()[-1].startswith("model demo/other@main: ")
    run = subprocess.run(
        [*command, "--model", f"{MODEL}:x.bin"],
        env=environment_of(hub.url, cache),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 4, run.stderr
    assert "'x.bin' is no GGUF file" in run.stderr.splitlines()[-1]


def test_a_worker_refuses_an_architecture_before_it_fetches_weights(hub: Hub, cache: Path) -> None:
    config = json.loads(hub.files["config.json"]) | {"model_type": "mpt"}
    hub.files["config.json"] = json.dumps(config).encode()
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-m", "worker.startup.fetch", MODEL],
            env=environment_of(hub.url, cache),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert run.returncode == 4
        last = run.stderr.splitlines()[-1]
        assert last.startswith(f"model {MODEL}: model_type is 'mpt'; accepted: ")
        assert not hub.downloads("model.safetensors")
