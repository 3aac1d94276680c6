"""Turn what the hub's library and the system raise into a sentence that says what to do."""

from __future__ import annotations

import errno
import os

import httpx
from filelock import Timeout
from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from runtime.hub.blobs import WrongContent
from runtime.hub.names import HubModel
from runtime.hub.refusals import HubRefused

FAILURES = (HfHubHTTPError, httpx.HTTPError, HFValidationError, OSError, Timeout, ValueError)
"""All that a download may raise."""
_BAD_TOKEN = "Invalid credentials in Authorization header"
_OTHER_FOLDER = "free some, or name a folder on another disk by HF_HOME"
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def is_unreachable(error: Exception) -> bool:
    """Return whether the hub was not reached, or has failed itself, so that a copy in the cache may do."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code >= 500
    return isinstance(error, (httpx.TransportError, OfflineModeIsEnabled))


def refusal(model: HubModel, error: Exception) -> HubRefused:
    """Return the refusal for what a download has raised."""
    found, advice = _why(model, error)
    return HubRefused(str(model), found, advice)


def no_space(model: HubModel, missing: int, free: int) -> HubRefused:
    """Return the refusal of a download of so many bytes into a cache that has fewer."""
    sizes = f"{missing / 1e6:.0f} MB are to be fetched, and {free / 1e6:.0f} MB are free"
    return HubRefused(str(model), f"{sizes} in {constants.HF_HUB_CACHE}", _OTHER_FOLDER)


def not_cached(model: HubModel, missing: str, error: Exception | None = None) -> HubRefused:
    """Return the refusal where the hub is not asked, or not reached, and the cache lacks a file."""
    no_folder = f"there is no folder {model.name}"
    lacks = f"the cache {constants.HF_HUB_CACHE} has no complete copy of it ({missing} is missing)"
    if error is None or isinstance(error, OfflineModeIsEnabled):
        return HubRefused(
            str(model),
            f"{no_folder}, HF_HUB_OFFLINE is set, and {lacks}",
            "start once without HF_HUB_OFFLINE, or name the cache that has it by HF_HOME",
        )
    if isinstance(error, HfHubHTTPError):
        how = f"answered with status {error.response.status_code}"
    else:
        how = f"cannot be reached ({_said(error)})"
    return HubRefused(
        str(model),
        f"{no_folder}, the hub at {constants.ENDPOINT} {how}, and {lacks}",
        "check the network, HTTPS_PROXY and HF_ENDPOINT, or try again later",
    )


def wrong_content(model: HubModel, error: WrongContent) -> HubRefused:
    """Return the refusal of a file that is not what the hub says it is."""
    advice = "look for a proxy that changes or caches files, and start again: nothing of the file is used"
    return HubRefused(str(model), f"what {constants.ENDPOINT} sent as {error}", advice)


def _why(model: HubModel, error: Exception) -> tuple[str, str]:
    if isinstance(error, HfHubHTTPError):
        return _why_refused(model, error)
    if isinstance(error, httpx.TransportError):
        broke_off = f"the download from {constants.ENDPOINT} broke off ({_said(error)})"
        return broke_off, "start again: it goes on where it stopped"
    if isinstance(error, HFValidationError):
        return f"its name is none of the hub ({error})", "accepted: ORG/NAME"
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return f"no space is left in {constants.HF_HUB_CACHE} ({error.strerror})", _OTHER_FOLDER
    if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
        place = error.filename or constants.HF_HUB_CACHE
        return (
            f"{place} cannot be written ({error.strerror})",
            "name a folder of this user's by HF_HOME, or set HF_HUB_OFFLINE=1 if the model is in the cache",
        )
    return f"it could not be fetched ({_said(error)})", "start again: what has come is kept"


def _why_refused(model: HubModel, error: HfHubHTTPError) -> tuple[str, str]:
    """Say what an answer of the hub means; order matters, as a gated model is also one that is not found."""
    hub, status = constants.ENDPOINT, error.response.status_code
    if isinstance(error, GatedRepoError):
        whose = "the account of the token has no access" if get_token() else "no token is set"
        found = f"its owners grant access one by one, and {whose}"
        advice = f"ask for access at {hub}/{model.name}, and set HF_TOKEN to a token of that account"
    elif error.response.headers.get("X-Error-Message") == _BAD_TOKEN:
        found = f"{hub} does not accept the token"
        advice = "set HF_TOKEN to a valid one, or unset it for a public model"
    elif isinstance(error, RevisionNotFoundError):
        found, advice = f"it has no revision {model.revision!r}", "accepted: a branch, tag or commit of it"
    elif isinstance(error, RepositoryNotFoundError):
        found = f"{hub} has no such model, or it is private; nor is there a folder {model.name}"
        advice = "check the name, or set HF_TOKEN to a token that may read it"
    elif isinstance(error, EntryNotFoundError):
        path = error.response.request.url.path
        found, advice = f"{hub} lists a file that it does not have ({path})", "accepted: another revision"
    elif isinstance(error, DisabledRepoError) or status in {401, 403}:
        found = f"{hub} forbids access (status {status})"
        advice = "set HF_TOKEN to a token that may read the model"
    elif status == 429:
        found = f"{hub} takes no more requests for now (status 429)"
        advice = "wait some minutes, or set HF_TOKEN"
    else:
        found, advice = f"{hub} answered with status {status}", "try again later, or check HF_ENDPOINT"
    return found, advice


def _said(error: Exception) -> str:
    """Return what an error says, in one line."""
    text = str(error) or (os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "")
    return " ".join(text.split()) or type(error).__name__
