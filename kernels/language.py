"""Triton and its language. An environment for CPUs does without them: there every op runs its reference."""

import importlib.util
from typing import Any


class _Absent:
    """Stands for Triton while modules that define kernels are imported: decorates functions with nothing."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, function: Any = None, **options: object) -> Any:
        return self if function is None else function


__all__ = ["HAS_TRITON", "tl", "triton"]

HAS_TRITON = importlib.util.find_spec("triton") is not None

if HAS_TRITON:
    import triton
    import triton.language as tl
    import triton.runtime.interpreter
else:
    triton = tl = _Absent()
