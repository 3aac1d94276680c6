"""Compiles `ops.c` for the processors of this architecture: `python -m kernels.native.build [COMPILER]`.

One library is made for each instruction set that torch distinguishes, so that an image which is built on one
machine is fast on another. Without a C compiler nothing is built, and PyTorch computes instead.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("ops.c")
BUILT = Path(__file__).with_name("built")
COMPILERS = ("cc", "gcc", "clang")
_WITHOUT = "workers on a CPU compute in PyTorch alone, which is slower"
TARGETS = {
    "x86_64": {"AVX512": "x86-64-v4", "AVX2": "x86-64-v3", "DEFAULT": "x86-64"},
    "aarch64": {"DEFAULT": "armv8-a"},
}
"""The -march of each capability, by torch's names, of each architecture."""
# Sums may be split into the lanes of a vector; NaN and infinity keep their meaning. How vectors are passed
# between functions (psabi) does not matter, since all that take one are inlined.
FLAGS = (
    "-O3", "-std=gnu11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wno-psabi",
    "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math",
)  # fmt: skip


def library_path(capability: str, built: Path = BUILT) -> Path:
    """Return the path of the library for a processor that torch calls `capability`."""
    return built / f"ops-{platform.machine()}-{capability}.so"


def compiler() -> str | None:
    """Return the path of the first of COMPILERS that is installed."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def build(command: str, built: Path = BUILT) -> list[Path]:
    """Compile every library of this architecture; return their paths.

    Raises subprocess.CalledProcessError, whose `stderr` is the compiler's, if one cannot be compiled.
    """
    built.mkdir(exist_ok=True)
    made = []
    for capability, march in TARGETS.get(platform.machine(), {}).items():
        path = library_path(capability, built)
        unfinished = path.with_suffix(".unfinished")
        options = [f"-march={march}"]
        if capability == "AVX512":
            options.append("-mprefer-vector-width=512")
        subprocess.run(
            [command, *FLAGS, *options, str(SOURCE), "-o", str(unfinished), "-lm"],
            check=True,
            capture_output=True,
            text=True,
        )
        unfinished.replace(path)  # a worker that starts meanwhile finds a whole library, old or new
        made.append(path)
    return made


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
        sys.stdout.write(f"{error.stderr}{command} cannot compile {SOURCE.name}; {_WITHOUT}\n")
    else:
        sys.stdout.write(f"Built {len(made)} libraries of {SOURCE.name} with {command}\n")


if __name__ == "__main__":
    main()
