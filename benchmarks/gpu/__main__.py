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
from pathlib import Path
from typing import Any

import torch

from benchmarks.flags import names
from benchmarks.gpu import anchors, ceilings, correctness, kernel_times, offline, variants
from benchmarks.gpu.setting.bench import Bench, NotMeasured
from benchmarks.gpu.setting.needs import check_needs
from benchmarks.gpu.setting.sizes import SIZES
from engine.build import resolve_device
from reporting.machine import machine
from reporting.section import Section, markdown


def _of_processes(name: str) -> Callable[[Bench], Section]:
    """Return a section whose module needs the packages of a fleet's client; they are checked before its
    import.
    """

    def run(bench: Bench) -> Section:
        check_needs()
        section: Section = importlib.import_module(f"benchmarks.gpu.{name}").measure(bench)
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
    "variants": variants.measure,
}
"""In the order in which they run: sections that others need come first, then the most important."""
MINUTES = 8.0
FAILED, WRONG = 1, 2


def main(argv: Sequence[str]) -> int:
    """Run the sections and return the exit code."""
    args = flags().parse_args(argv)
    try:
        device = resolve_device(args.device)
        chosen = _chosen(args.sections)
    except ValueError as error:
        print(error, file=sys.stderr)
        return WRONG
    sizes = SIZES[args.sizes or ("llama-3.1-8b" if device.type == "cuda" else "tiny")]
    with tempfile.TemporaryDirectory(prefix="baton-gpu-") as folder:
        bench = Bench(device, sizes, Path(folder), args.seed)
        facts, sections = _facts(argv, bench), {}
        end_s = time.monotonic() + args.minutes * 60
        for name in chosen:
            sections[name] = _run(name, bench, end_s)
            if args.json is not None:
                text = json.dumps({"facts": facts, "sections": sections}, indent=1)
                args.json.write_text(text + "\n", encoding="utf-8")
    print(_in_short(bench), end="\n\n")
    print("; ".join(f"{name} {said}" for name, said in facts.items()), flush=True)
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
    before = time.monotonic()
    if before > end_s:
        return _tell_nothing(name, "not measured", "out of time; --minutes allows more")
    print(f"{name} …", file=sys.stderr, flush=True)
    failure = ""
    try:
        section = SECTIONS[name](bench)
    except NotMeasured as reason:
        return _tell_nothing(name, "not measured", str(reason))
    except Exception as error:  # noqa: BLE001 - one section's failure must not cost the others' figures
        traceback.print_exc()
        failure = f"{type(error).__name__}: {error}"
    if failure:
        bench.release()  # not before: the traceback held the section's engine, and so its memory
        return _tell_nothing(name, "failed", failure)
    print(section.markdown(), end="\n\n", flush=True)
    return {"status": "measured", "seconds": time.monotonic() - before, **section.as_dict()}


def _tell_nothing(name: str, status: str, reason: str) -> dict[str, Any]:
    print(f"### {name}\n\n{status}: {reason}\n", flush=True)
    return {"status": status, "reason": reason}


def _in_short(bench: Bench) -> str:
    if not bench.is_comparable:
        return "Not compared with published figures, which takes a GPU and its sizes."
    header = ("figure", f"vLLM {anchors.VLLM}", "goal", "measured here")
    return "### In short\n\n" + markdown(header, anchors.comparison(bench.found))


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
