"""Compiles the C sources for this architecture's processors: `python -m kernels.native.build [COMPILER]`.

One library is made for each set of instructions, so that an image which is built on one machine is fast on
another. Without a C compiler nothing is built, and PyTorch computes instead. A compiler that does not know
the newest instructions builds the other libraries.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
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
# NaN and infinity keep their meaning, and sums their order. How vectors are passed between functions (psabi)
# does not matter, since all that take one are inlined.
FLAGS = (
    "-O3", "-std=gnu11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wno-psabi",
    "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip


def targets() -> tuple[Target, ...]:
    """Return the targets of this architecture, the best first; none if it is not known."""
    return TARGETS.get(platform.machine(), ())


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


def build(command: str, built: Path = BUILT) -> list[Path]:
    """Compile the libraries of this architecture; return the paths of those that could be compiled.

    Raises subprocess.CalledProcessError, whose `stderr` is the compiler's, if not even the last could be.
    """
    built.mkdir(exist_ok=True)
    wanted = targets()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as compilers:
        are_made = list(compilers.map(lambda target: _compile(command, target, built, wanted[-1]), wanted))
    return [library_path(target, built) for target, is_made in zip(wanted, are_made, strict=True) if is_made]


def _compile(command: str, target: Target, built: Path, needed: Target) -> bool:
    """Return whether a library could be compiled; raise CalledProcessError if the `needed` one could not."""
    path = library_path(target, built)
    unfinished = path.with_suffix(".unfinished")
    digest = f'-DSOURCE_DIGEST="{source_digest()}"'
    sources = map(str, sorted(SOURCE.glob("*.c")))
    run = subprocess.run(
        [command, *FLAGS, digest, *target.options, *sources, "-o", str(unfinished), "-lm"],
        check=target is needed,
        capture_output=True,
        text=True,
    )
    if run.returncode == 0:
        unfinished.replace(path)  # a worker that starts meanwhile finds a whole library, old or new
    return run.returncode == 0


def main() -> None:
    """Build with the compiler that the first argument names, or with one that is installed.

    It is no failure if nothing can be built, which the output says.
    """
    command = sys.argv[1] if len(sys.argv) > 1 else compiler()
    if command is None:
        sys.stdout.write(f"No C compiler ({', '.join(COMPILERS)}); {_WITHOUT}\n")
        return
    try:
        made = build(command)
    except OSError as error:
        sys.stdout.write(f"{command} cannot be run ({error}); {_WITHOUT}\n")
    except subprocess.CalledProcessError as error:
        sys.stdout.write(f"{error.stderr}{command} cannot compile native ops; {_WITHOUT}\n")
    else:
        sys.stdout.write(f"Built {len(made)} of {len(targets())} libraries of native ops with {command}\n")


if __name__ == "__main__":
    main()
