"""Fetch the needed files of a model into the cache that the hub's tools share.

    asking the hub ──▶ small files, with the index of the weights ──▶ weights ──▶ the snapshot's folder

A revision is resolved to its commit first, and all files are those of that commit. A snapshot is complete
once all of them are linked from its folder; files of it that other tools have fetched count too.
"""

from __future__ import annotations

import glob
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import (
    HfApi,
    constants,
    get_cached_repo_tree,
    get_hf_file_metadata,
    hf_hub_url,
    snapshot_download,
)
from huggingface_hub.errors import CachedRepoTreeNotFoundError
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public by its documentation alone
    build_hf_headers,
    disable_progress_bars,
)

from runtime.hub import blobs
from runtime.hub.blobs import Blob, Stopped, WrongContent
from runtime.hub.contents import CONFIG, INDEX, TOKENIZER, WEIGHTS, Scope, first_files, shards, weight_files
from runtime.hub.names import HubModel
from runtime.hub.progress import Fetching
from runtime.hub.reasons import FAILURES, is_unreachable, no_space, not_cached, refusal, wrong_content

OnFetching = Callable[[Fetching], None]
Check = Callable[[Path], None]
"""Called with the folder of the small files before weights are fetched; may raise `HubRefused`."""
_AT_ONCE = 4
"""Files that are fetched at the same time: one connection seldom fills a line."""
_QUESTIONS_AT_ONCE = 8
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The folder of a model at a commit, or a GGUF file in it."""

    path: Path
    model: HubModel
    """The model, pinned to the commit."""
    unchecked: str = ""
    """Why the hub could not be asked which commit the revision is; empty if it was, or must not be."""


def accept(folder: Path) -> None:
    """Fetch the weights of every model."""


def fetch(model: HubModel, scope: Scope, on_fetching: OnFetching, check: Check = accept) -> Snapshot:
    """Return the folder of a model, with all of its files that `scope` needs, or its GGUF file, whole.

    Raises `HubRefused`.
    """
    disable_progress_bars()
    try:
        return _Cache(model).fetch(scope, on_fetching, check)
    except WrongContent as error:
        raise wrong_content(model, error) from error
    except FAILURES as error:
        raise refusal(model, error) from error


class _Cache:
    """A model's folder in the cache."""

    def __init__(self, model: HubModel) -> None:
        self._model = model
        cache = Path(constants.HF_HUB_CACHE).expanduser().resolve()
        name = repo_folder_name(repo_id=model.name, repo_type="model")
        self._folder = cache / name
        self._locks = cache / ".locks" / name

    def fetch(self, scope: Scope, on_fetching: OnFetching, check: Check) -> Snapshot:
        model = self._model
        if model.is_pinned and self._listed(model.revision) and not self._missing(model.revision, scope):
            return self._snapshot(model.revision)
        if constants.is_offline_mode():
            return self._as_it_is(scope, None)
        try:
            info = HfApi().model_info(
                model.name,
                revision=model.revision,
                files_metadata=True,
                timeout=constants.HF_HUB_ETAG_TIMEOUT,
            )
        except FAILURES as error:
            if not is_unreachable(error):
                raise
            return self._as_it_is(scope, error)
        if not info.sha:
            raise OSError(f"{constants.ENDPOINT} names no commit: HF_ENDPOINT has to lead to a hub")
        commit = info.sha
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        if not self._listed(commit) or self._missing(commit, scope):
            self._download(commit, first_files(model, sizes, scope), sizes, on_fetching)
            if scope is Scope.ALL and not model.file:
                check(self._path(commit))
                index = self._path(commit) / INDEX
                self._download(commit, weight_files(model, sizes, index), sizes, on_fetching)
        self._remember(commit)
        return self._snapshot(commit)

    def _snapshot(self, commit: str, unchecked: str = "") -> Snapshot:
        model = HubModel(self._model.name, commit, self._model.file)
        return Snapshot(self._path(commit) / model.file, model, unchecked)

    def _path(self, commit: str) -> Path:
        return self._folder / "snapshots" / commit

    def _as_it_is(self, scope: Scope, error: Exception | None) -> Snapshot:
        """Return the snapshot that the cache has of the revision. Raises `HubRefused` if it is incomplete."""
        commit = self._model.revision if self._model.is_pinned else self._remembered()
        missing = self._missing(commit, scope) if commit else self._model.file or CONFIG
        if missing:
            raise not_cached(self._model, missing, error)
        return self._snapshot(commit, "" if error is None else str(error))

    def _listed(self, commit: str) -> dict[str, int]:
        """Return the sizes of all files of a commit, if the cache has such a list."""
        try:
            tree = get_cached_repo_tree(self._model.name, revision=commit)
        except CachedRepoTreeNotFoundError:
            return {}
        return {file.path: file.size for file in tree}

    def _missing(self, commit: str, scope: Scope) -> str:
        """Return a file that is needed and not there as it should be; empty if the snapshot is complete.

        Without a list of the commit's files, those that no model lacks have to be there.
        """
        folder, sizes = self._path(commit), self._listed(commit)
        if file := self._model.file:
            return "" if _is_there(folder / file, sizes.get(file)) else file
        needed = first_files(self._model, sizes, scope) if sizes else [CONFIG, TOKENIZER]
        has_index = INDEX in sizes or (not sizes and (folder / INDEX).is_file())
        if scope is Scope.ALL and not has_index:
            needed.append(WEIGHTS)
        for name in needed:
            if not _is_there(folder / name, sizes.get(name)):
                return name
        if scope is Scope.ALL and has_index:
            for name in shards(self._model, folder / INDEX):
                if not _is_there(folder / name, sizes.get(name)):
                    return name
        return ""

    def _remembered(self) -> str:
        """Return the commit that the revision was when it was last asked for; empty if it never was."""
        try:
            return (self._folder / "refs" / self._model.revision).read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def _remember(self, commit: str) -> None:
        if self._model.is_pinned or self._remembered() == commit:
            return
        ref = self._folder / "refs" / self._model.revision
        new = ref.with_name(f"{ref.name}.{os.getpid()}.new")
        with suppress(OSError):  # a cache that can only be read is no worse for it
            ref.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(commit, encoding="utf-8")
            new.replace(ref)

    def _download(
        self, commit: str, names: list[str], sizes: Mapping[str, int], on_fetching: OnFetching
    ) -> None:
        """Fetch files of a commit and link them into its snapshot."""
        with ThreadPoolExecutor(_QUESTIONS_AT_ONCE) as pool:
            wanted = list(pool.map(lambda name: self._blob(commit, name, sizes[name]), names))
        total = sum(blob.size for blob in wanted)

        def look() -> None:
            on_fetching(Fetching("downloading", sum(blob.num_bytes_there() for blob in wanted), total))

        self._folder.mkdir(parents=True, exist_ok=True)
        left = total - sum(blob.num_bytes_there() for blob in wanted)
        if left > (free := shutil.disk_usage(self._folder).free):
            raise no_space(self._model, left, free)
        stopping = threading.Event()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            try:
                _wait_for([pool.submit(blobs.fetch, blob, stopping) for blob in wanted], look)
            finally:
                stopping.set()
        # The files are there, so the library only links them, and lists all files of the commit.
        snapshot_download(
            self._model.name, revision=commit, allow_patterns=[glob.escape(name) for name in names]
        )

    def _blob(self, commit: str, name: str, size: int) -> Blob:
        """Ask the hub for the name that the cache gives a file, and whether this caller may have it."""
        url = hf_hub_url(self._model.name, name, revision=commit)
        headers = build_hf_headers()
        meta = get_hf_file_metadata(url, headers=headers, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        if not meta.etag:
            raise OSError(f"{url} has no ETag: HF_ENDPOINT has to lead to a hub")
        return Blob(
            name=name,
            url=url,
            etag=meta.etag,
            size=size if meta.size is None else meta.size,
            folder=self._folder / "blobs",
            lock=self._locks / f"{meta.etag}.lock",
        )


def _is_there(path: Path, size: int | None) -> bool:
    try:
        return size in {None, path.stat().st_size}
    except OSError:
        return False


def _wait_for(fetched: Iterable[Future[None]], look: Callable[[], None]) -> None:
    """Wait for files. Raises what the first one raises that fails by itself."""
    pending = set(fetched)
    while pending:
        look()
        ended, pending = wait(pending, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
        for each in ended:
            error = each.exception()
            if error is not None and not isinstance(error, Stopped):
                raise error
    look()
