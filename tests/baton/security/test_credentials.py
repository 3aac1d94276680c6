"""Credentials are read from files, named when they are no good, and never sent over an open line."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton import Client, Credentials


def test_a_key_file_is_read_again_for_each_call(tmp_path: Path) -> None:
    ca, key = tmp_path / "ca.pem", tmp_path / "api.key"
    ca.touch()
    key.write_text("first\n")
    shown = Credentials(ca, api_key_file=key)
    assert shown.metadata() == (("authorization", "Bearer first"),)
    key.write_text("second")
    assert shown.metadata() == (("authorization", "Bearer second"),)
    assert Credentials().metadata() == ()


@pytest.mark.parametrize("content", [None, b"", b" \n", b"two words", b"two\nlines", b"\xff"])
def test_a_key_file_that_is_none_is_named_and_not_shown(tmp_path: Path, content: bytes | None) -> None:
    key = tmp_path / "api.key"
    if content is not None:
        key.write_bytes(content)
    with pytest.raises(ValueError, match=r"api\.key") as caught:
        Credentials(tmp_path / "ca.pem", api_key_file=key)
    assert "two" not in str(caught.value)


def test_a_key_or_certificate_is_not_shown_without_tls(tmp_path: Path) -> None:
    key = tmp_path / "api.key"
    key.write_text("secret")
    for given in ({"api_key_file": key}, {"cert": key, "key": key}):
        with pytest.raises(ValueError, match="ca is missing"):
            Credentials(**given)
    with pytest.raises(ValueError, match="one of cert and key is missing"):
        Credentials(ca=key, cert=key)


def test_a_missing_ca_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gone\.pem cannot be read: No such file"):
        Client(credentials=Credentials(tmp_path / "gone.pem"))
