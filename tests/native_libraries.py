"""Native ops of another processor, or none, for tests of what computes then."""

import pytest

from kernels.native import build, loader


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine for which no native ops were built: references compute on its processor."""
    monkeypatch.setattr("kernels.native.loader.library", lambda: None)


@pytest.fixture(params=build.targets(), ids=lambda target: target.name)
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> build.Target:
    """Each library that was built and that this processor runs."""
    loaded = loader.load(request.param)
    if loaded is None:
        pytest.skip("not built, or this processor does not run it")
    monkeypatch.setattr("kernels.native.loader.library", lambda: loaded)
    return loaded.target
