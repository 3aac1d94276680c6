from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels.interpreter import Interpreter


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    interpreter = Interpreter()
    yield interpreter
    interpreter.close()


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing that was compiled before counts."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine for which no native ops were built: references compute on its processor."""
    monkeypatch.setattr("kernels.native.loader.library", lambda: None)
