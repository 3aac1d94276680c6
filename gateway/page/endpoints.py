"""The routes of the page: its files, and the stream of what the fleet does.

The page loads nothing from elsewhere, and runs no script and no style that is not a file of its own.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from baton.wire.fields import shown
from gateway.page.watching import SharedWatch, Viewer
from gateway.serving.errors import ApiError, Problem
from gateway.serving.fleet import Fleets, caller_key
from gateway.serving.streaming import EventStream

_FOLDER = Path(__file__).parent / "static"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def routes(fleets: Fleets) -> APIRouter:
    """Return the routes, which raise `ApiError` and `BatonError`."""
    router = APIRouter()
    watches = {fleet: SharedWatch(fleet.sdk) for fleet in fleets.all}
    files = {path.name: path.read_bytes() for path in _FOLDER.iterdir() if path.suffix in _KINDS}

    @router.api_route("/", methods=["GET", "HEAD"])
    async def page() -> Response:
        return _file("index.html", files)

    @router.get("/page/fleet")
    async def events(request: Request, *, model: str = "", steps: bool = False) -> Response:
        """Stream what the fleet of a model does, to operators alone where callers have keys."""
        _refuse_foreign(request)
        fleet = (await fleets.model(model)).fleet
        facts, watch = await fleet.sdk.describe(), watches[fleet]
        watch.check_room()
        viewer, connection = Viewer(caller_key.get(), include_steps=steps), request.state.connection
        return EventStream(lambda _: watch.events(viewer, facts, lambda: connection.is_leaving), {})

    @router.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def part(name: str) -> Response:
        return _file(name, files)

    return router


def _refuse_foreign(request: Request) -> None:
    """Raise `ApiError` for a page of another site that cannot read the stream, but would hold it open.

    One that may read it states its origin, which the door has checked.
    """
    site = request.headers.get("sec-fetch-site", "none")
    if site not in {"none", "same-origin"} and "origin" not in request.headers:
        message = f"sec-fetch-site is {shown(site)}; accepted: 'same-origin', or a program"
        raise ApiError(Problem(403, "permission_error", message, code="origin_not_allowed"))


def _file(name: str, files: dict[str, bytes]) -> Response:
    content = files.get(name)
    if content is None:
        raise ApiError(Problem(404, "not_found_error", f"the page has no file {name!r}"))
    return Response(content, headers=HEADERS, media_type=_KINDS[Path(name).suffix])
