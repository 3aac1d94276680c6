"""Compiles the C sources for this architecture's processors: `python -m kernels.native.build [COMPILER]`.

One library is made for each set of instructions, so that an image which is built on one machine is fast on
another; `--this-machine` makes the one that is used here. What was built from these sources stays. Without a
C compiler nothing is built, and PyTorch computes instead. A compiler that does not know the newest
instructions builds the other libraries.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "source"
BUILT = Path(__file__).parent / "built"
COMPILERS = ("cc", "gcc", "clang")
_WITHOUT = "workers on a CPU compute in PyTorch alone, which is slower"


@dataclass(frozen=True, slots=True)
class Target:
    """A set of instructions that a library is compiled for.

    capability  torch's name for the vectors that it has
    features    those of a processor that runs it, by torch's names
    options     the compiler's
    has_bf16    whether it multiplies bfloat16
    """

    name: str
    capability: str
    features: frozenset[str]
    options: tuple[str, ...]
    has_bf16: bool = False


_AVX2 = frozenset({"avx2", "fma3", "f16c", "bmi", "bmi2", "lzcnt"})
_AVX512 = _AVX2 | {"avx512_f", "avx512_bw", "avx512_cd", "avx512_dq", "avx512_vl"}
_WIDE = ("-march=x86-64-v4", "-mprefer-vector-width=512")
TARGETS = {
    "x86_64": (
        Target(
            "amx",
            "AVX512",
            _AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16"},
            (*_WIDE, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
            has_bf16=True,
        ),
        Target("avx512_bf16", "AVX512", _AVX512 | {"avx512_bf16"}, (*_WIDE, "-mavx512bf16"), has_bf16=True),
        Target("avx512", "AVX512", _AVX512, _WIDE),
        Target("avx2", "AVX2", _AVX2, ("-march=x86-64-v3",)),
        Target("x86-64", "DEFAULT", frozenset(), ("-march=x86-64",)),
    ),
    "aarch64": (
        Target("armv8-bf16", "DEFAULT", frozenset({"bf16"}), ("-march=armv8.2-a+bf16",), has_bf16=True),
        Target("armv8", "DEFAULT", frozenset(), ("-march=armv8-a",)),
    ),
}
"""The targets of each architecture, the best first."""
_CPUINFO = {
    "fma3": "fma",
    "bmi": "bmi1",
    "lzcnt": "abm",
    **{f"avx512_{part}": f"avx512{part}" for part in ("f", "bw", "cd", "dq", "vl")},
}
"""Names of features in /proc/cpuinfo, where they differ from torch's."""
# NaN and infinity keep their meaning, and sums their order. How vectors are passed between functions (psabi)
# does not matter, since all that take one are inlined.
FLAGS = (
    "-O3", "-std=gnu11", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-psabi",
    "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip


def targets() -> tuple[Target, ...]:
    """Return the targets of this architecture, the best first; none if it is not known."""
    return TARGETS.get(platform.machine(), ())


def of_processor(known: Sequence[Target], cpuinfo: str) -> tuple[Target, ...]:
    """Return the targets that a processor runs, by /proc/cpuinfo, in their order.

    Nothing of torch is imported, so that this can go on while torch is installed.
    """
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    has = set(found[1].split()) if found else set()
    return tuple(each for each in known if {_CPUINFO.get(name, name) for name in each.features} <= has)


def library_path(target: Target, built: Path = BUILT) -> Path:
    return built / f"ops-{target.name}.so"


def source_digest() -> str:
    """Return a digest of the sources. A library contains that of its own, since its ABI changes with them."""
    digest = hashlib.blake2b(digest_size=12)
    for path in sorted(SOURCE.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def compiler() -> str | None:
    """Return the path of the first of COMPILERS that is installed."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def build(command: str, built: Path = BUILT, wanted: Sequence[Target] | None = None) -> list[Path]:
    """Compile the libraries of targets, by default all of this architecture; return the paths of those that
    could be compiled, or were built from these sources before.

    Raises subprocess.CalledProcessError, whose `stderr` is the compiler's, if not even the last could be.
    """
    wanted = targets() if wanted is None else wanted
    built.mkdir(exist_ok=True)
    digest = source_digest()
    missing = [target for target in wanted if not _is_current(library_path(target, built), digest)]
    sources = sorted(SOURCE.glob("*.c"), key=lambda path: path.stat().st_size, reverse=True)
    with (
        tempfile.TemporaryDirectory(prefix="unfinished-", dir=built) as folder,
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as compilers,
    ):
        made = {
            target: [
                compilers.submit(_compile, command, target, path, Path(folder), digest) for path in sources
            ]
            for target in missing
        }
        for target, compiling in made.items():
            runs = [each.result() for each in compiling]
            failed = next((run for run in runs if run.returncode), None)
            if failed is None:
                _link(command, target, Path(folder), library_path(target, built))
            elif target is wanted[-1]:
                failed.check_returncode()
    return [path for target in wanted if _is_current(path := library_path(target, built), digest)]


def build_best(command: str, known: Sequence[Target], built: Path = BUILT) -> list[Path]:
    """Compile the library of the first of these targets whose instructions the compiler knows.

    Raises as `build` does.
    """
    for target in known[:-1]:
        with contextlib.suppress(subprocess.CalledProcessError):
            return build(command, built, (target,))
    return build(command, built, known[-1:])


def _is_current(path: Path, digest: str) -> bool:
    """Return whether a library was built from the sources with this digest."""
    return path.exists() and digest.encode() in path.read_bytes()


def _compile(
    command: str, target: Target, source: Path, folder: Path, digest: str
) -> subprocess.CompletedProcess[str]:
    macro = f'-DSOURCE_DIGEST="{digest}"'
    unit = folder / f"{target.name}-{source.stem}.o"
    return subprocess.run(
        [command, *FLAGS, macro, *target.options, "-c", str(source), "-o", str(unit)],
        check=False,
        capture_output=True,
        text=True,
    )


def _link(command: str, target: Target, folder: Path, path: Path) -> None:
    units = map(str, sorted(folder.glob(f"{target.name}-*.o")))
    unfinished = folder / path.name
    subprocess.run(
        [command, "-shared", *units, "-o", str(unfinished), "-lm"], check=True, capture_output=True, text=True
    )
    unfinished.replace(path)  # a worker that starts meanwhile finds a whole library, old or new


def main() -> None:
    """Build with the compiler that is named, or with one that is installed.

    It is no failure if nothing can be built, which the output says.
    """
    parser = argparse.ArgumentParser(prog="python -m kernels.native.build", description=__doc__)
    parser.add_argument("compiler", nargs="?", default=compiler(), metavar="COMPILER")
    parser.add_argument("--this-machine", action="store_true", help="only the library that is used here")
    args = parser.parse_args()
    command, wanted = args.compiler, targets()
    num_wanted = 1 if wanted and args.this_machine else len(wanted)
    if command is None:
        sys.stdout.write(f"No C compiler ({', '.join(COMPILERS)}); {_WITHOUT}\n")
        return
    try:
        if wanted and args.this_machine:
            made = build_best(
                command, of_processor(wanted, Path("/proc/cpuinfo").read_text(encoding="utf-8"))
            )
        else:
            made = build(command)
    except OSError as error:
        sys.stdout.write(f"{command} cannot be run ({error}); {_WITHOUT}\n")
    except subprocess.CalledProcessError as error:
        sys.stdout.write(f"{error.stderr}{command} cannot compile native ops; {_WITHOUT}\n")
    else:
        sys.stdout.write(f"Built {len(made)} of {num_wanted} libraries of native ops with {command}\n")


if __name__ == "__main__":
    main()
