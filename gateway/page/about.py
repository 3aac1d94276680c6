"""The page at `/` of a gateway that does not serve the playground: what is served here, in words."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape

from starlette.responses import HTMLResponse

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem; }
code { font-size: 0.95em; }
td { padding: 0.15rem 1.5rem 0.15rem 0; vertical-align: top; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e4e6ea; } }
"""
_ROUTES = (
    ("POST /v1/chat/completions", "OpenAI's chat completions"),
    ("POST /v1/completions", "OpenAI's completions"),
    ("POST /v1/responses", "OpenAI's responses"),
    ("POST /v1/messages", "Anthropic's messages"),
    ("GET /v1/models", "the models"),
    ("POST /v1/files, POST /v1/batches", "batches, where the gateway has Redis"),
    ("POST /tokenize, POST /detokenize", "tokens of a text, and back"),
    ("GET /health", "200 if a router serves"),
    ("GET /version", "the version"),
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; "
    f"style-src 'sha256-{_STYLE_HASH}'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def about(version: str, models: Iterable[str], state: str) -> HTMLResponse:
    """Return the page. It loads nothing, and no other page may frame it."""
    rows = "".join(f"<tr><td><code>{escape(call)}</code><td>{escape(what)}" for call, what in _ROUTES)
    names = ", ".join(f"<code>{escape(name)}</code>" for name in models)
    about = f"A request's <code>model</code> is one of {names}." if names else escape(state)
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Baton</title><style>{_STYLE}</style>'
        f'<meta name="viewport" content="width=device-width"><h1>Baton</h1>'
        f"<p>This is the HTTP API of language models. {about}</p>"
        f"<table>{rows}</table><p>Version {escape(version)}.</p></html>",
        headers=_HEADERS,
    )
