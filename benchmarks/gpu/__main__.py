"""How close the engine comes to what a GPU can do at most: one command, some 8 minutes on an H200.

    python -m benchmarks.gpu --json found.json
    python -m benchmarks.gpu --sections ceilings,decode,prefill

Weights are random and made on the device; nothing is downloaded. A section that fails or cannot run here says
why and does not stop the rest. `--sizes tiny` tries the whole program on a CPU, where its times mean nothing.

No section begins after `--minutes`. Exit codes: 0 nothing failed, 1 a section failed, 2 a wrong setting.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.flags import names, number, numbers
from benchmarks.gpu import anchors, ceilings, correctness, kernel_times, offline
from benchmarks.gpu.bench import Bench, NotMeasured
from benchmarks.gpu.sizes import SIZES
from engine.building.build import resolve_device
from sim.reporting.machine import machine
from sim.reporting.section import Section

PACKAGES = ("grpc", "grpc_health", "jinja2", "prometheus_client", "redis", "structlog", "uvloop", "xxhash")
"""The packages that a fleet of processes needs, beyond those of the engine."""


def _of_processes(name: str) -> Callable[[Bench], Section]:
    """Return a section of `processes`, which is imported only where a fleet can run."""

    def run(bench: Bench) -> Section:
        missing = [package for package in PACKAGES if find_spec(package) is None]
        if missing:
            raise NotMeasured(f"a fleet needs the Python packages {', '.join(missing)}")
        section: Section = getattr(importlib.import_module("benchmarks.gpu.processes"), name)(bench)
        return section

    return run


SECTIONS: dict[str, Callable[[Bench], Section]] = {
    "ceilings": ceilings.measure,
    "correctness": correctness.check,
    "kernels": kernel_times.measure,
    "decode": offline.decode,
    "busy": offline.busy,
    "prefill": offline.prefill,
    "burst": offline.burst,
    "fleet": _of_processes("fleet"),
    "handoff": _of_processes("handoff"),
    "variants": offline.variants,
}
"""In the order in which they run: sections that others need come first, then the most important."""
MINUTES = 8.0
FAILED, WRONG = 1, 2


def main(argv: Sequence[str]) -> int:
    """Run the sections and return the exit code."""
    args = flags().parse_args(argv)
    try:
        device = resolve_device(args.device)
        names = _chosen(args.sections)
    except ValueError as error:
        print(error, file=sys.stderr)
        return WRONG
    sizes = SIZES[args.sizes or ("llama-3.1-8b" if device.type == "cuda" else "tiny")]
    offered = {"rates": args.rates, "rate_s": args.rate_s}
    sizes = replace(sizes, **{name: value for name, value in offered.items() if value is not None})
    with tempfile.TemporaryDirectory(prefix="baton-gpu-") as folder:
        bench = Bench(device, sizes, Path(folder), args.seed)
        facts, sections = _facts(argv, bench), {}
        end_s = time.monotonic() + args.minutes * 60
        for name in names:
            sections[name] = _run(name, bench, end_s)
            if args.json is not None:
                text = json.dumps({"facts": facts, "sections": sections}, indent=1)
                args.json.write_text(text + "\n", encoding="utf-8")
    if bench.is_comparable:
        print(f"### In short\n\n{anchors.comparison(bench.found)}\n")
    else:
        print("Not compared with published figures, which takes a GPU and its sizes.\n")
    print("; ".join(f"{name} {fact}" for name, fact in facts.items()), flush=True)
    return FAILED if any(section["status"] == "failed" for section in sections.values()) else 0


def flags() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    listed = ", ".join(SECTIONS)
    add("--sections", type=names, default=list(SECTIONS), metavar="A,B", help=f"to be run: {listed} (all)")
    add(
        "--device", default="auto", choices=("auto", "cpu", "cuda"), help="auto: a GPU if there is one (auto)"
    )
    add("--sizes", choices=SIZES, help="the size of the model (llama-3.1-8b on a GPU, tiny on a CPU)")
    add("--rates", type=numbers, metavar="R,R", help="requests per second to the fleet (8,12,16)")
    add("--rate-s", type=number, metavar="S", help="seconds for which each rate is offered (25)")
    add("--seed", type=int, default=1, metavar="N", help="the seed of weights, prompts and inputs (1)")
    add("--minutes", type=float, default=MINUTES, metavar="M", help=f"begin no section later ({MINUTES:g})")
    add("--json", type=Path, metavar="FILE", help="write everything measured")
    return parser


def _chosen(sections: Sequence[str]) -> list[str]:
    unknown = sorted(set(sections) - set(SECTIONS))
    if unknown:
        raise ValueError(f"--sections is {','.join(sections)}; accepted: of {','.join(SECTIONS)}")
    return [name for name in SECTIONS if name in sections]


def _run(name: str, bench: Bench, end_s: float) -> dict[str, Any]:
    """Run a section, and return its figures, or why there are none."""
    print(f"{name} …", file=sys.stderr, flush=True)
    began_s = time.monotonic()
    status = "not measured"
    try:
        if began_s > end_s:
            raise NotMeasured("out of time; --minutes allows more")
        section = SECTIONS[name](bench)
        print(section.markdown(), end="\n\n", flush=True)
        return {"status": "measured", "seconds": time.monotonic() - began_s, **section.as_dict()}
    except NotMeasured as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - one section's failure must not cost the others' figures
        traceback.print_exc()
        status, reason = "failed", f"{type(error).__name__}: {error}"
    if status == "failed":
        bench.release()  # not before: the traceback held the section's engine, and so its memory
    print(f"### {name}\n\n{status}: {reason}\n", flush=True)
    return {"status": status, "reason": reason}


def _facts(argv: Sequence[str], bench: Bench) -> dict[str, str]:
    return {
        "command": " ".join(["python -m benchmarks.gpu", *argv]),
        "device": torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "no GPU",
        "model": bench.sizes.model.name,
        "torch": torch.__version__,
        **machine(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
