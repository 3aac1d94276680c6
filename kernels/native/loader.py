"""Loads the library that was built for this processor."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kernels.native.build import BUILT, Target, library_path, source_digest, targets

TORCH_LIBRARY = str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
_RUNTIME = "GOMP_parallel"
_PREPARE = "baton_prepare"
_SOURCE_DIGEST = "baton_source_digest"


class Library(NamedTuple):
    """A library of native ops, and what it was compiled for."""

    functions: ctypes.CDLL
    target: Target


@cache
def library() -> Library | None:
    """Return the best library for the instructions that torch uses here; None if none was built."""
    usable = of_capability(targets(), torch.backends.cpu.get_cpu_capability())
    return next((loaded for target in usable if (loaded := load(target))), None)


def of_capability(known: Sequence[Target], capability: str) -> tuple[Target, ...]:
    """Return the targets that have the vectors torch uses; those without any if torch names unknown ones.

    ARM's targets are all without: each processor has vectors of 128 bits, and no library is made for SVE.
    """
    if capability not in {target.capability for target in known}:
        capability = "DEFAULT"
    return tuple(target for target in known if target.capability == capability)


def load(target: Target, built: Path = BUILT) -> Library | None:
    """Return the library of a target; None if this processor does not run it.

    Also None if it was not built, or from other sources: what it expects of its callers may have changed.
    """
    path = library_path(target, built)
    if not (target.features <= processor_features() and path.exists()):
        return None
    functions = ctypes.CDLL(str(path))
    is_current = _digest_of(functions) == source_digest()
    return Library(functions, target) if is_current and getattr(functions, _PREPARE)() else None


def _digest_of(functions: ctypes.CDLL) -> str:
    try:
        function = getattr(functions, _SOURCE_DIGEST)
    except AttributeError:  # an older library
        return ""
    function.restype = ctypes.c_char_p
    digest: bytes = function()
    return digest.decode()


def processor_features() -> frozenset[str]:
    """Return the names of this processor's features; none if this torch cannot tell."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return frozenset(name for name, has in capabilities.items() if has is True)


@cache
def parallel() -> Any:
    """Return the entry point of torch's OpenMP runtime; None, for one thread, if there is no such runtime."""
    found = (parallel_of(library) for library in (None, TORCH_LIBRARY))
    return next(filter(None, found), None)


def parallel_of(library: str | None) -> Any:
    """Return the entry point of the OpenMP runtime that a library was linked with, if any.

    Without a `library`, that of the whole process is looked for. Some builds of torch keep their runtime to
    themselves, such as those with CUDA for ARM.
    """
    try:
        return ctypes.cast(getattr(ctypes.CDLL(library), _RUNTIME), ctypes.c_void_p)
    except (AttributeError, OSError):
        return None
