"""Find the folders of the models that a service's settings name, and fetch those of the hub."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from runtime.hub.apart import Caller, located
from runtime.hub.contents import Scope
from runtime.settings import ServiceSettings

FACTS_ALONE = ("runtime.hub",)
"""The program of a service that needs no weights."""


class Checkpoints:
    """Finds models for one service, of a kind and a name. `program` fetches those of the hub."""

    def __init__(self, service: ServiceSettings, kind: str, name: str, program: tuple[str, ...]) -> None:
        self._service = service
        self._caller = Caller(kind, name, service.log_level, service.log_format, program)

    def settings(self, scope: Scope) -> ServiceSettings:
        """Return the settings with the folder of the model. Raises as `located` does."""
        path, model = located(self._service.model, scope, self._caller)
        return dataclasses.replace(self._service, model=path, hub=model)

    def folder(self, path: Path) -> Path:
        """Return the folder of another model, whole. Raises as `located` does."""
        found, _ = located(path, Scope.ALL, self._caller)
        return found
