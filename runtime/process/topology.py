"""The cores behind a set of processors, some of which share a core, and some cores are slower than others."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

SLOW = 0.5
"""A core below this share of the fastest one's capacity is left out: steps wait for their last thread."""


def num_full_cores(processors: Collection[int], root: Path = Path("/")) -> int:
    """Return how many cores these processors belong to, without the slow ones of a hybrid processor.

    A core with two hardware threads counts once: both would wait for the same multipliers and the same
    memory. `root` contains `sys`. Where the kernel does not say, each processor is a core.
    """
    slow = _slow(processors, root)
    fast = [processor for processor in processors if processor not in slow] or list(processors)
    return len({_core(processor, root) for processor in fast})


def _slow(processors: Collection[int], root: Path) -> set[int]:
    """Return the efficiency cores: by their list on Intel, by their capacity elsewhere."""
    slow = _listed(_text(root / "sys/devices/cpu_atom/cpus"))
    texts = {processor: _text(_folder(processor, root) / "cpu_capacity") for processor in processors}
    capacities = {processor: int(text) for processor, text in texts.items() if text}
    most = max(capacities.values(), default=0)
    return slow | {processor for processor, capacity in capacities.items() if capacity < SLOW * most}


def _core(processor: int, root: Path) -> str:
    """Return a name of the processor's core: the list of its processors."""
    return _text(_folder(processor, root) / "topology/thread_siblings_list") or str(processor)


def _folder(processor: int, root: Path) -> Path:
    return root / f"sys/devices/system/cpu/cpu{processor}"


def _listed(text: str) -> set[int]:
    """Return the processors of a list such as `0-3,8`."""
    processors: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        processors |= set(range(int(first), int(last or first) + 1))
    return processors


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
