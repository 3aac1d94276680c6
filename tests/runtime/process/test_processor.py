"""Processors of every kind have names, and unlike ones have unlike names."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from runtime.process.processor import processor_name

EPYC = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9B14\nstepping\t: 1\n"


def arm_core(number: int, part: str, variant: str, revision: int) -> str:
    """Return a processor's entry as kernels for aarch64 write it, without a model's name."""
    return (
        f"processor\t: {number}\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd evtstrm aes crc32 atomics asimddp\n"
        f"CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: {variant}\nCPU part\t: {part}\n"
        f"CPU revision\t: {revision}\n"
    )


GRAVITON_2 = [arm_core(number, "0xd0c", "0x3", 1) for number in range(2)]
GRAVITON_3 = [arm_core(number, "0xd40", "0x1", 1) for number in range(2)]
COMPATIBLE = [f"{core}model name\t: ARMv8 Processor rev 1 (v8l)\n" for core in GRAVITON_2]
"""The description that the kernel gives to a 32-bit program, and qemu to any program."""
KINDS = (
    "ARM implementer 0x41, part 0xd05, variant 0x2, revision 0",
    "ARM implementer 0x41, part 0xd41, variant 0x1, revision 2",
)
HYBRID = [arm_core(0, "0xd05", "0x2", 0), arm_core(1, "0xd05", "0x2", 0), arm_core(2, "0xd41", "0x1", 2)]


@pytest.mark.parametrize(
    ("entries", "name"),
    [
        ([EPYC, EPYC], "AMD EPYC 9B14"),
        (GRAVITON_2, "ARM implementer 0x41, part 0xd0c, variant 0x3, revision 1"),
        (COMPATIBLE, "ARM implementer 0x41, part 0xd0c, variant 0x3, revision 1"),
        (GRAVITON_3, "ARM implementer 0x41, part 0xd40, variant 0x1, revision 1"),
        (HYBRID, "; ".join(KINDS)),
        (["processor\t: 0\nBogoMIPS\t: 48.00\n"], platform.processor() or platform.machine()),
    ],
    ids=["x86", "graviton 2", "compatible", "graviton 3", "hybrid", "nameless"],
)
def test_a_processor_has_the_name_that_the_kernel_gives(
    entries: list[str], name: str, tmp_path: Path
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("\n".join(entries) + "\n", encoding="utf-8")
    assert processor_name(tmp_path) == name


def test_without_a_word_of_the_kernel_the_architecture_is_the_name(tmp_path: Path) -> None:
    assert processor_name(tmp_path) == (platform.processor() or platform.machine()) != ""
