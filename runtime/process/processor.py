"""The name of this machine's processor, as the kernel describes it."""

from __future__ import annotations

import platform
from pathlib import Path

_OF_ARM = ("CPU implementer", "CPU part", "CPU variant", "CPU revision")


def processor_name(root: Path = Path("/")) -> str:
    """Return the model's name; of an ARM the numbers of its cores, of which kernels give no name.

    A hybrid processor of ARM has several kinds of cores, which the name lists in the order of their first
    cores. `root` contains `proc`. Where the kernel says nothing, the name is that of the architecture.
    """
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    entries = [_fields(entry) for entry in text.split("\n\n")]
    arm = dict.fromkeys(_arm(entry) for entry in entries if _OF_ARM[0] in entry)
    models = (entry["model name"] for entry in entries if "model name" in entry)
    return "; ".join(arm) or next(models, "") or platform.processor() or platform.machine()


def _fields(entry: str) -> dict[str, str]:
    """Return the fields of one processor's entry."""
    lines = [line.partition(":") for line in entry.splitlines()]
    return {name.strip(): value.strip() for name, _, value in lines}


def _arm(entry: dict[str, str]) -> str:
    """Return what tells a core of ARM from others. A `model name` there is that of the architecture."""
    numbers = (f"{name.removeprefix('CPU ')} {entry[name]}" for name in _OF_ARM if name in entry)
    return f"ARM {', '.join(numbers)}"
