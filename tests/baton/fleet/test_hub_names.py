"""The launcher, which users install alone, takes the same names for models of the hub as the services."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from baton.fleet import hub_names
from runtime.hub import names
from runtime.hub.refusals import HubRefused

CHARACTERS = st.sampled_from("aZ09-._/@:~ ü")


@given(st.text(CHARACTERS, max_size=12))
@example("Qwen/Qwen3-0.6B")
@example("org/name@refs/pr/1")
@example("./org/name")
@example("a/b@x/../y")
@example("a/b:c.gguf")
@example("a/b:c.GGuf")
@example("a/b:c\n.gguf")
@example("a/b.gguf")
@example("a/b:.gguf")
def test_both_take_the_same_names(text: str) -> None:
    path = hub_names.model_path(text)
    assert path == names.model_path(text)
    try:
        model = names.hub_model(path)
    except HubRefused:
        with pytest.raises(ValueError, match="single file"):
            hub_names.hub_name(path)
        return
    assert hub_names.hub_name(path) == (None if model is None else str(path))


def test_what_is_accepted_is_said_alike() -> None:
    named = (
        "a GGUF file, or a model of the hub as ORG/NAME or ORG/NAME@REVISION, and :FILE.gguf after it for "
        "one of its GGUF files"
    )
    assert hub_names.ACCEPTED.endswith(named)
    assert names.ACCEPTED.endswith(named)


def test_a_folder_is_absolute_for_the_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_names.absolute(Path("small")) == str(tmp_path / "small")


def test_a_file_keeps_its_name_where_it_is_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0123").write_bytes(b"GGUF")
    (tmp_path / "tiny.gguf").symlink_to("0123")
    monkeypatch.chdir(tmp_path)
    assert hub_names.absolute(Path("tiny.gguf")) == str(tmp_path / "tiny.gguf")
