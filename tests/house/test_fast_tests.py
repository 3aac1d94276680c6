"""Each folder of tests is in `make test-fast` or left out of it on purpose."""

import re
from pathlib import Path

from tools.house.source_tree import ROOT

LEFT_OUT = {
    "baton": "starts servers and processes",
    "benchmarks": "starts fleets",
    "chaos": "starts fleets",
    "chart": "needs Helm",
    "clients": "starts fleets and Node.js",
    "compose": "runs containers",
    "decode_worker": "fetches as workers do",
    "demo_model": "trains and runs a model",
    "deploy": "explores many orders of events, and starts Kubernetes' API server",
    "docs": "copies the checkout",
    "dst": "plays hundreds of simulated fleets",
    "engine/building": "runs models",
    "engine/calibration": "runs models",
    "engine/device": "copies between memories",
    "engine/execution": "runs models",
    "engine/group": "runs models",
    "engine/kv": "runs models",
    "engine/model": "runs models",
    "engine/proof": "runs models",
    "engine/sampling": "runs models",
    "fleet": "starts fleets",
    "gateway": "starts processes and fleets",
    "golden": "replays long recordings",
    "kernels": "compiles kernels",
    "kubernetes": "runs a Kubernetes node",
    "kvtransfer": "starts processes",
    "mutations": "starts processes",
    "router": "starts servers and processes",
    "runtime": "starts servers and processes, needs Redis",
    "sim/reporting": "draws pages",
    "tools": "starts processes",
    "vectors": "starts servers and Node.js",
    "worker": "starts workers",
}


def fast() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return {
        name for line in re.findall(r"^FAST [+:]= (.*)$", makefile, re.MULTILINE) for name in line.split()
    }


def nearest(folder: str, listed: set[str]) -> str | None:
    """Return the entry of `listed` that is the folder itself or the closest folder above it."""
    above = [folder, *map(str, Path(folder).parents)]
    return next((name for name in above if name in listed), None)


def test_each_folder_is_fast_or_left_out_on_purpose() -> None:
    tests = (ROOT / "tests").rglob("test_*.py")
    folders = {str(path.parent.relative_to(ROOT / "tests")) for path in tests}
    undecided = {folder for folder in folders if nearest(folder, fast() | set(LEFT_OUT)) is None}
    assert not undecided


def test_what_is_listed_exists_and_is_listed_once() -> None:
    assert fast()
    assert not fast() & set(LEFT_OUT)
    assert all((ROOT / "tests" / name).exists() for name in fast() | set(LEFT_OUT))
