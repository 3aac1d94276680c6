"""The adapters of a folder: each has a folder of its name there, and may come, change and go at any time.

A thread looks through the folder every few seconds, and reads the files that are new or have changed. An
adapter that cannot be served is known with the reason. Names that requests give are only looked up here: no
path is ever made of one.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from engine.errors import AdapterRefused
from engine.model.adapters.checkpoint import CONFIG, WEIGHTS, AdapterFiles, read_adapter
from worker.adapters.load_times import LoadTimes
from worker.config import ADAPTER_NAME, ADAPTER_NAME_RULE

log = structlog.get_logger()

LOOK_S = 2.0
"""Time between two looks at the folder."""
MAX_ADAPTERS = 256
"""Most adapters of a folder, as the fleet is told of all of them every second; others are left out."""

MAX_REFUSAL = 500
"""Most characters of what was found, and of what is accepted: the fleet is told of both every second."""

_Signature = tuple[tuple[int, int, int], ...]
"""The inode, time and size of both files: files that are written to, replaced or permitted get another."""


@dataclass(frozen=True, slots=True)
class FoundAdapter:
    """An adapter of the folder, as it was when its files were read."""

    name: str
    path: Path
    signature: _Signature
    num_bytes: int
    digest: str
    """Empty if it cannot be served."""
    refusal: str = ""
    """The field, its value and what would be accepted, if it cannot be served."""


class AdapterCatalog:
    """The adapters in a folder, from `start` to `stop`: a container of digests, which any thread may ask."""

    def __init__(self, folder: Path, times: LoadTimes, max_bytes: int | None = None) -> None:
        """`max_bytes` is the largest file of weights that is read."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._times = times
        self._check: Callable[[AdapterFiles], None] = lambda _: None
        self._on_change: Callable[[], None] = lambda: None
        self._found: Mapping[str, FoundAdapter] = {}
        self._by_digest: Mapping[str, FoundAdapter] = {}
        self._num_left_out = 0
        self._logged = ""
        self._stopped, self._has_looked = threading.Event(), threading.Event()
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adapters", daemon=True)

    def __contains__(self, digest: object) -> bool:
        return digest in self._by_digest

    def find(self, digest: str) -> FoundAdapter | None:
        """Return the adapter with this digest, if it is there."""
        return self._by_digest.get(digest)

    def read(self, found: FoundAdapter) -> AdapterFiles:
        """Read an adapter again. Raises AdapterRefused."""
        return read_adapter(found.name, found.path, self._max_bytes)

    def all(self) -> Mapping[str, FoundAdapter]:
        """Return all adapters by name, those that cannot be served included."""
        return self._found

    def start(self, check: Callable[[AdapterFiles], None], on_change: Callable[[], None]) -> None:
        """Look through the folder from now on. `check` raises AdapterRefused for what cannot be served.

        `on_change` is called on the thread that looks.
        """
        self._check, self._on_change = check, on_change
        self._thread.start()

    def wait_until_known(self, timeout_s: float) -> None:
        """Wait for the first look, for so long at most."""
        self._has_looked.wait(timeout_s)

    def look_soon(self) -> None:
        """Look at once: something has changed."""
        self._wanted.set()

    def stop(self) -> None:
        """Look no more; a file that is being read is read to its end."""
        self._stopped.set()
        self._wanted.set()

    def look(self) -> None:
        """Look through the folder once. Raises OSError if it cannot be read: then what is known stays."""
        with os.scandir(self._folder) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
        seen = [(_shown(name), path, *_signature(path)) for name in names for path in (self._folder / name,)]
        adapters = [each for each in seen if each[2]]
        self._note_left_out(len(adapters) - MAX_ADAPTERS)
        adapters = adapters[:MAX_ADAPTERS]
        kept = {name: self._found[name] for name, *_ in adapters if name in self._found}
        if len(kept) < len(self._found):
            self._publish(kept)
        for name, path, signature, num_bytes in adapters:
            known = self._found.get(name)
            if self._stopped.is_set():
                return
            if known is None or known.signature != signature:
                self._publish({**self._found, name: self._read(name, path, signature, num_bytes)})

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.look()
            except OSError as error:
                self._log_once("adapters_not_found", reason=str(error))
            except Exception:  # a loop's top: what is known is served on
                log.exception("adapters_look_failed", folder=str(self._folder))
            else:
                self._logged = ""
            self._has_looked.set()
            self._wanted.wait(LOOK_S)
            self._wanted.clear()

    def _note_left_out(self, num_adapters: int) -> None:
        if num_adapters > 0 and num_adapters != self._num_left_out:
            log.warning("adapters_left_out", number=num_adapters, most=MAX_ADAPTERS)
        self._num_left_out = num_adapters

    def _log_once(self, event: str, reason: str) -> None:
        """Log a trouble of the folder, unless it is the one of the last look."""
        if reason != self._logged:
            log.warning(event, folder=str(self._folder), reason=reason)
        self._logged = reason

    def _read(self, name: str, path: Path, signature: _Signature, num_bytes: int) -> FoundAdapter:
        began = time.monotonic()
        try:
            if not ADAPTER_NAME.fullmatch(name):
                raise AdapterRefused(name, path, "name", f"is {name!r}", ADAPTER_NAME_RULE)
            files = read_adapter(name, path, self._max_bytes)
            self._check(files)
        except AdapterRefused as error:
            refusal = refusal_of(error)
            log.warning("adapter_refused", name=name, reason=refusal)
            return FoundAdapter(name, path, signature, num_bytes, "", refusal)
        except Exception as error:  # whatever is wrong with one, the others are served
            log.exception("adapter_look_failed", name=name)
            refusal = f"the adapter cannot be read ({type(error).__name__}); accepted: what peft writes"
            return FoundAdapter(name, path, signature, num_bytes, "", refusal)
        self._times.observe(num_bytes, time.monotonic() - began)
        log.info("adapter_found", name=name, digest=files.digest, rank=files.rank)
        return FoundAdapter(name, path, signature, num_bytes, files.digest)

    def _publish(self, found: Mapping[str, FoundAdapter]) -> None:
        self._found = found
        self._by_digest = {each.digest: each for each in found.values() if each.digest}
        self._on_change()


def refusal_of(error: AdapterRefused) -> str:
    """Return why an adapter is refused, in a text that can be sent. Both parts may name what its files do."""
    found, accepted = f"{error.field} {error.found}"[:MAX_REFUSAL], error.accepted[:MAX_REFUSAL]
    return f"{_shown(found)}; accepted: {_shown(accepted)}"


def _shown(text: str) -> str:
    """Return a text in which each character can be printed and sent. A file's name may be any bytes."""
    return text if text.isprintable() else repr(text)[1:-1]


def _signature(path: Path) -> tuple[_Signature, int]:
    """Return the signature and the bytes of an adapter's files; empty if none of them is there.

    A link to nothing, and a file that may not be looked at, are there: they are refused by name.
    """
    parts, num_bytes = [], 0
    for file in (CONFIG, WEIGHTS):
        try:
            stat = _status(path / file)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            parts.append((0, 0, error.errno or 0))
            continue
        parts.append((stat.st_ino, stat.st_ctime_ns, stat.st_size))
        num_bytes += stat.st_size
    if not parts and _leads_nowhere(path):
        parts.append((0, 0, errno.ENOENT))
    return tuple(parts), num_bytes


def _leads_nowhere(path: Path) -> bool:
    """Return whether a path is a link to nothing."""
    try:
        path.stat()
    except FileNotFoundError:
        return path.is_symlink()
    except OSError:  # a loop of links has been noticed with the files
        pass
    return False


def _status(path: Path) -> os.stat_result:
    """Return the status of a file, or that of a link which leads nowhere."""
    try:
        return path.stat()
    except FileNotFoundError:
        return path.lstat()
