from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels.interpreter import Interpreter
from tests.native_libraries import target, without_native

__all__ = ["interpreter", "target", "without_native"]


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    interpreter = Interpreter()
    yield interpreter
    interpreter.close()


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing that was compiled before counts."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
