"""A file that a caller sends: on disk while it arrives, in Redis once its lines are checked."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import BinaryIO

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from baton.wire.fields import shown
from gateway.batches.files import FileStore, StoredFile, new_id
from gateway.batches.lines import LineChecker
from gateway.serving.bodies import away_from_loop
from gateway.serving.errors import invalid
from gateway.serving.shares import Room
from runtime.state.errors import StoreUnavailable

PIECE_BYTES = 16_384
"""About how much is checked and compressed at a time: other callers wait a millisecond or two."""
MIN_TTL_S, MAX_TTL_S = 3600, 30 * 86400
"""OpenAI's limits."""
_DIGITS = re.compile("[0-9]{1,10}")


@asynccontextmanager
async def received_form(request: Request, max_bytes: int, room: Room) -> AsyncIterator[FormData]:
    """Yield the form that the caller sends, its file on disk if it is large. Raises `ApiError`.

    The room is taken before anything is read, if the caller states the length, else as the form grows.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        kind = request.headers.get("content-type")
        raise invalid("", f"content-type is {_told(kind)}; accepted: multipart/form-data")
    with room:
        try:
            pieces = _limited(request, max_bytes, room)
            form = await MultiPartParser(request.headers, pieces, max_files=1, max_fields=8).parse()
        except (MultiPartException, KeyError) as error:
            raise invalid("", f"the form cannot be read: {error}", code="malformed_message") from None
        try:
            yield form
        finally:
            await form.close()


async def _limited(request: Request, max_bytes: int, room: Room) -> AsyncGenerator[bytes, None]:
    size = int(request.headers.get("content-length", 0))
    _refuse_longer(size, max_bytes)
    room.grow(size)
    size = 0
    async for piece in request.stream():
        size += len(piece)
        _refuse_longer(size, max_bytes)
        room.grow_to(size)
        yield piece


def _refuse_longer(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        message = f"the form has {size} bytes or more; accepted: at most {max_bytes} now"
        raise invalid("file", message, status=413, code="too_large")


def checked_expiry(where: str, anchor: object, seconds: object) -> int:
    """Return OpenAI's `expires_after` in seconds. Raises `ApiError`."""
    if anchor != "created_at":
        raise invalid(f"{where}.anchor", f"{where}.anchor is {_told(anchor)}; accepted: 'created_at'")
    number = int(seconds) if isinstance(seconds, str) and _DIGITS.fullmatch(seconds) else seconds
    if type(number) is not int or not MIN_TTL_S <= number <= MAX_TTL_S:
        accepted = f"{MIN_TTL_S} to {MAX_TTL_S}"
        raise invalid(f"{where}.seconds", f"{where}.seconds is {_told(seconds)}; accepted: {accepted}")
    return number


def _told(part: object) -> str:
    """Return a part of a form, or a header, as errors show it."""
    return "missing" if part is None else shown(part) if isinstance(part, str | int) else "a file"


async def store_upload(form: FormData, tenant: str, files: FileStore, checker: LineChecker) -> StoredFile:
    """Check the form and its file, and keep the file. Raises `ApiError`; then nothing is kept."""
    purpose, upload = form.get("purpose"), form.get("file")
    if purpose != "batch":
        raise invalid("purpose", f"purpose is {_told(purpose)}; accepted: 'batch'")
    if not isinstance(upload, UploadFile) or not upload.size:
        raise invalid("file", "file is missing or empty; accepted: a file of JSON, one request on a line")
    if upload.size > files.limits.max_file_bytes:
        message = f"file has {upload.size} bytes; accepted: at most {files.limits.max_file_bytes}"
        raise invalid("file", message, status=413, code="too_large")
    ttl_s = files.limits.file_ttl_s
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is not None or seconds is not None:
        ttl_s = checked_expiry("expires_after", anchor, seconds)
    file_id = new_id("file-")
    fields = {"filename": upload.filename or "file.jsonl", "purpose": purpose}
    await files.reserve(file_id, tenant, upload.size, fields)
    try:
        num_pieces = await _store_lines(upload.file, file_id, files, checker)
        counted = {
            "lines": str(checker.num_lines),
            "urls": json.dumps(checker.urls),
            "models": json.dumps(sorted(checker.models)),
        }
        await files.publish(file_id, tenant, purpose, ttl_s, num_pieces, counted)
    except BaseException:
        with contextlib.suppress(StoreUnavailable):  # it expires soon
            await asyncio.shield(files.delete(file_id, tenant, purpose))
        raise
    return await files.find(file_id, tenant)


async def _store_lines(source: BinaryIO, file_id: str, files: FileStore, checker: LineChecker) -> int:
    """Check and keep the lines; return in how many pieces."""
    longest = checker.max_line_bytes + 1
    piece, place, has_empty = bytearray(), 0, False
    begin = codecs.BOM_UTF8
    """The mark that the next line may begin with: some editors mark a file as UTF-8."""
    while line := source.readline(longest):
        if len(line) == longest and not line.endswith(b"\n"):
            message = (
                f"line {checker.num_lines + 1}: the line has {longest} bytes or more; "
                f"accepted: at most {checker.max_line_bytes}"
            )
            raise invalid("", message, code="too_large")
        piece += line
        line, begin = line.removeprefix(begin), b""
        if not line.strip():
            has_empty = True
        elif has_empty:
            raise invalid("file", f"line {checker.num_lines + 1} is empty; accepted: only lines at the end")
        else:
            await away_from_loop(len(line), checker.check, line.rstrip(b"\r\n"))
        if len(piece) >= PIECE_BYTES:
            await files.append(file_id, place, bytes(piece))
            place += 1
            piece.clear()
    if piece:
        await files.append(file_id, place, bytes(piece))
        place += 1
    if not checker.num_lines:
        raise invalid("file", "file has no request; accepted: one on each line")
    return place
