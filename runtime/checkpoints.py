"""Find the folders of the models that a service's settings name: fetch those of the hub, open GGUF files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gguf_model.folder import folder_of, is_gguf
from runtime.caching import cache_folder
from runtime.hub.apart import Caller, located
from runtime.hub.contents import Scope
from runtime.settings import ServiceSettings

FACTS_ALONE = ("runtime.hub",)
"""The program of a service that needs no weights."""


class Checkpoints:
    """Finds models for one service, of a kind and a name. `program` fetches those of the hub.

    Methods raise as `located` does, and `GgufUnusable` for a GGUF file that is not served.
    """

    def __init__(self, service: ServiceSettings, kind: str, name: str, program: tuple[str, ...]) -> None:
        self._service = service
        self._caller = Caller(kind, name, service.log_level, service.log_format, program)

    def settings(self, scope: Scope) -> ServiceSettings:
        """Return the settings with the folder of the model."""
        path, model = located(self._service.model, scope, self._caller)
        return dataclasses.replace(self._service, model=_opened(path), hub=model)

    def folder(self, path: Path) -> Path:
        """Return the folder of another model, whole."""
        found, _ = located(path, Scope.ALL, self._caller)
        return _opened(found)


def _opened(path: Path) -> Path:
    return folder_of(path, cache_folder()) if is_gguf(path) else path
