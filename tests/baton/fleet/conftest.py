"""A checkout whose services are stand-ins of a few lines: real processes, quick to start."""

from collections.abc import Callable
from pathlib import Path

import pytest

from baton.fleet import FleetSpec
from tests.patience import PATIENCE_S

# Serves nothing, but behaves as the services do towards their launcher. What it does besides is its `--act`.
_STAND_IN = """
import argparse, os, signal, subprocess, sys, time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--act", default="serve")
parser.add_argument("--note", default="")
parser.add_argument("--shm-dir", default="")
args, rest = parser.parse_known_args()
print("arguments:", *rest, file=sys.stderr, flush=True)

if args.act == "refuse":
    print("block_size is 17: it must be a power of two", file=sys.stderr)
    sys.exit(2)
if args.act == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if args.act == "litter" and args.shm_dir:
    Path(args.shm_dir, "socket").touch()
    print("shm:", args.shm_dir, file=sys.stderr, flush=True)
if args.act == "child":
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", deaf])
    print("child:", child.pid, file=sys.stderr, flush=True)
if args.act == "semaphore":
    import multiprocessing
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    print("semaphore:", semaphore._semlock.name, file=sys.stderr, flush=True)
if args.act == "slow":
    for done in range(8):
        print(f"STARTING stand-in 1 done={done} total=8 phase=reading weights", flush=True)
        time.sleep(0.5)
if args.act == "stall":
    print("STARTING stand-in 1 done=340000000 total=803000000 phase=reading weights", flush=True)
if args.act == "die-twice":
    with Path(args.note).open("a") as file:
        file.write("x")
    if len(Path(args.note).read_text()) in (2, 3):
        print("not yet", file=sys.stderr, flush=True)
        sys.exit(3)
if args.act not in ("mute", "stall"):
    print(f"READY stand-in {os.getpid()} address=127.0.0.1:1 metrics=127.0.0.1:2", flush=True)
if args.act == "die-soon":
    print('{"event": "listening", "level": "info"}', file=sys.stderr, flush=True)
    print('{"event": "stalled", "level": "critical", "traceback": "a\\\\nb"}', file=sys.stderr, flush=True)
    print("out of luck", file=sys.stderr, flush=True)
    sys.exit(4)
while True:  # in short sleeps: one long wait could begin just after a signal, which it would not see
    time.sleep(0.1)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for service in ("router", "prefill_worker", "decode_worker", "gateway"):
        package = root / service
        package.mkdir(parents=True)
        (package / "__main__.py").write_text(_STAND_IN, encoding="utf-8")
    return root


@pytest.fixture
def make_spec(checkout: Path, tmp_path: Path) -> Callable[..., FleetSpec]:
    def make(**changes: object) -> FleetSpec:
        settings: dict[str, object] = {
            "model": tmp_path / "model",
            "checkout": checkout,
            "run_dir": tmp_path / "run",
            "await_connections": False,
            "standstill_s": 30.0,
            "stop_grace_s": PATIENCE_S,
        }
        return FleetSpec(**{**settings, **changes})  # type: ignore[arg-type]  # settings by name

    return make
