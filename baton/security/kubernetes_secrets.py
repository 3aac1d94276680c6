"""A fleet's certificates in the Secrets of a Kubernetes namespace: PREFIX-ca, and PREFIX-PART for each part.

The Secrets of the parts have the keys that cert-manager uses, too: `tls.crt`, `tls.key` and `ca.crt`.
"""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509

from baton.security.certificates import PARTS, SERVES, general_name, make_certificates
from baton.security.secret_files import write_secret

LABELS = {"app.kubernetes.io/name": "baton", "app.kubernetes.io/component": "certificates"}
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALL_S = 30.0

Content = Mapping[str, bytes]


class Secrets:
    """The Secrets of a namespace. Raises `ValueError` if the API server refuses or cannot be reached."""

    def __init__(self, server: str, namespace: str, token: str, trusted: ssl.SSLContext | None) -> None:
        self._url = f"{server}/api/v1/namespaces/{namespace}/secrets"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._trusted = trusted

    @classmethod
    def of_pod(cls) -> Secrets:
        """Return those of the namespace in which this process runs as a pod's account."""
        try:
            server = (
                f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
            )
            namespace, token = ((ACCOUNT / name).read_text().strip() for name in ("namespace", "token"))
            trusted = ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
        except (KeyError, OSError):
            raise ValueError(f"--secrets is for a pod with an account; {ACCOUNT} is missing here") from None
        return cls(server, namespace, token, trusted)

    def get(self, name: str) -> Content | None:
        """Return a Secret's content, or None if there is no such Secret."""
        found = self._call("GET", f"/{name}")
        if found is None:
            return None
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}

    def put(self, name: str, content: Content) -> None:
        """Create a Secret, or replace the content of the one of this name."""
        data = {key: base64.b64encode(value).decode() for key, value in content.items()}
        found = self._call("GET", f"/{name}")
        if found is None:
            named = {"name": name, "labels": LABELS}
            self._call("POST", "", {"apiVersion": "v1", "kind": "Secret", "metadata": named, "data": data})
        else:
            self._call("PUT", f"/{name}", {**found, "data": data})

    def _call(self, method: str, path: str, item: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Return what the API server answers; None where there is no such object to get."""
        body = None if item is None else json.dumps(item).encode()
        # The scheme is that of the API server, which the kubelet names.
        request = urllib.request.Request(self._url + path, body, self._headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=CALL_S, context=self._trusted) as response:  # noqa: S310
                answer: dict[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            if error.code == http.client.NOT_FOUND and method == "GET":
                return None
            reason = error.read().decode(errors="replace")
            raise ValueError(f"{method} {request.full_url}: {error.code} {reason}") from None
        except OSError as error:
            raise ValueError(f"{method} {request.full_url}: {error}") from None
        return answer


def keep_certificates(
    secrets: Secrets, prefix: str, folder: Path, hosts: Sequence[str], days: int, now: dt.datetime
) -> bool:
    """Make certificates in `folder` and store them, unless all are good. Return whether any were made.

    A certificate is good if its Secret has the fleet's CA, it names all hosts, and a third of its days is
    left. The CA stays. Nothing is stored before all are made.
    """
    authority = secrets.get(f"{prefix}-ca")
    found = {part: secrets.get(f"{prefix}-{part}") for part in PARTS}
    if authority is not None and all(
        _is_good(found[part], authority, hosts if SERVES in uses else (), now + dt.timedelta(days=days) / 3)
        for part, uses in PARTS.items()
    ):
        return False
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, content in (authority or {}).items():
        write_secret(folder / name, content)
    made = make_certificates(folder, hosts, days, now)
    ca = made.ca.read_bytes()
    secrets.put(f"{prefix}-ca", {made.ca.name: ca, made.ca_key.name: made.ca_key.read_bytes()})
    for part in PARTS:
        own = {"tls.crt": made.cert(part).read_bytes(), "tls.key": made.key(part).read_bytes()}
        secrets.put(f"{prefix}-{part}", {"ca.crt": ca, **own})
    return True


def _is_good(found: Content | None, authority: Content, hosts: Sequence[str], until: dt.datetime) -> bool:
    if found is None or "tls.key" not in found or found.get("ca.crt") != authority.get("ca.pem"):
        return False
    try:
        certificate = x509.load_pem_x509_certificate(found.get("tls.crt", b""))
        names = set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (ValueError, x509.ExtensionNotFound):
        return False
    return {general_name(host) for host in hosts} <= names and until < certificate.not_valid_after_utc
