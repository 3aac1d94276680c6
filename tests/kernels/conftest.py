from collections.abc import Iterator

import pytest

from tests.kernels.interpreter import Interpreter


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    interpreter = Interpreter()
    yield interpreter
    interpreter.close()
