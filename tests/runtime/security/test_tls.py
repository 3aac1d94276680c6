"""Credentials from files: what is wrong with them is said by name before anything listens."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from baton.security.certificates import PARTS, make_certificates
from baton.security.secret_files import Certificates
from runtime.security.tls import (
    CertificateRole,
    TlsFiles,
    TlsUnusable,
    check_in_date,
    load_tls,
    roles_of,
)

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("fleet"), ["gpu-1.example"], 30, NOW)


def files(made: Certificates, part: str) -> TlsFiles:
    return TlsFiles(made.ca, made.cert(part), made.key(part))


@pytest.mark.parametrize("role", CertificateRole)
def test_each_part_gets_a_certificate_of_its_own_role_only(made: Certificates, role: CertificateRole) -> None:
    assert role.value in PARTS
    load_tls(files(made, role.value), role, NOW)
    for other in set(CertificateRole) - {role}:
        with pytest.raises(TlsUnusable, match=f"is not a {other.value}'s") as caught:
            load_tls(files(made, role.value), other, NOW)
        assert caught.value.path == made.cert(role.value)


def test_keys_can_be_read_by_their_user_only(made: Certificates) -> None:
    assert {path.stat().st_mode & 0o777 for path in made.folder.glob("*.key")} == {0o600}
    assert len(list(made.folder.glob("*.key"))) == len(PARTS) + 1


def test_a_second_making_keeps_the_ca_and_renews_the_rest(tmp_path: Path) -> None:
    first = make_certificates(tmp_path, (), 30, NOW)
    ca, router = first.ca.read_bytes(), first.cert("router").read_bytes()
    make_certificates(tmp_path, (), 30, NOW + dt.timedelta(days=20))
    assert first.ca.read_bytes() == ca
    assert first.cert("router").read_bytes() != router
    load_tls(files(first, "router"), CertificateRole.ROUTER, NOW + dt.timedelta(days=49))


@pytest.mark.parametrize("days", [-1, 31])
def test_a_certificate_out_of_its_time_is_refused(made: Certificates, days: int) -> None:
    now = NOW + dt.timedelta(days=days)
    said = rf"is not valid now, {now:%Y-%m-%d %H:%M} UTC by this machine's clock; accepted: a time from \d"
    with pytest.raises(TlsUnusable, match=said) as caught:
        load_tls(files(made, "worker"), CertificateRole.WORKER, now)
    assert caught.value.path == made.cert("worker")


@pytest.mark.parametrize(("made_days_ago", "wrong"), [(60, "expired"), (-1, "not yet valid"), (1, "")])
def test_a_certificate_shows_its_time_to_its_own_process(
    tmp_path: Path, made_days_ago: int, wrong: str
) -> None:
    own = make_certificates(tmp_path, (), 30, dt.datetime.now(dt.UTC) - dt.timedelta(days=made_days_ago))
    cert, key = own.cert("gateway"), own.key("gateway")
    if not wrong:
        check_in_date(cert, key)
        return
    with pytest.raises(TlsUnusable, match=f"is not valid now: certificate .*{wrong}") as caught:
        check_in_date(cert, key)
    assert caught.value.path == cert


def test_a_key_of_another_certificate_is_refused_without_being_shown(made: Certificates) -> None:
    with pytest.raises(TlsUnusable, match="does not fit the certificate") as caught:
        load_tls(TlsFiles(made.ca, made.cert("worker"), made.key("router")), CertificateRole.WORKER, NOW)
    assert caught.value.path == made.key("router")
    secret = made.key("router").read_text().splitlines()[1]
    assert secret not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"not PEM", b"-----BEGIN CERTIFICATE-----\nx\n"])
@pytest.mark.parametrize("part", ["ca", "cert", "key"])
def test_a_missing_or_broken_file_is_named(
    made: Certificates, tmp_path: Path, part: str, content: bytes | None
) -> None:
    broken = tmp_path / "broken.pem"
    if content is not None:
        broken.write_bytes(content)
    paths = {"ca": made.ca, "cert": made.cert("worker"), "key": made.key("worker")} | {part: broken}
    with pytest.raises(TlsUnusable) as caught:
        load_tls(TlsFiles(**paths), CertificateRole.WORKER, NOW)
    assert str(broken) in str(caught.value)


def test_what_was_loaded_does_not_show_its_key(made: Certificates) -> None:
    assert "PRIVATE" not in repr(load_tls(files(made, "worker"), CertificateRole.WORKER, NOW))


def test_a_peer_is_what_its_certificate_names() -> None:
    names = [b"worker.baton.internal", b"localhost", b"router.baton.internal.evil.example"]
    assert roles_of({"x509_subject_alternative_name": names}) == {CertificateRole.WORKER}
    assert roles_of({"x509_common_name": [b"router.baton.internal"]}) == frozenset()
    assert roles_of({}) == frozenset()
