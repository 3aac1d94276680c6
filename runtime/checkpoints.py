"""Find the folders of the models that a service's settings name, and fetch those of the hub."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from runtime.hub.apart import Caller, located
from runtime.hub.contents import Scope
from runtime.settings import ServiceSettings


def fetched(service: ServiceSettings, kind: str, name: str, scope: Scope) -> ServiceSettings:
    """Return the settings of a service with the folder of its model. Raises as `located` does."""
    path, model = located(service.model, scope, _caller(service, kind, name))
    return dataclasses.replace(service, model=path, hub=model)


def fetched_path(path: Path, service: ServiceSettings, kind: str, name: str) -> Path:
    """Return the folder of another model that a service needs whole. Raises as `located` does."""
    folder, _ = located(path, Scope.ALL, _caller(service, kind, name))
    return folder


def _caller(service: ServiceSettings, kind: str, name: str) -> Caller:
    return Caller(kind, name, service.log_level, service.log_format)
