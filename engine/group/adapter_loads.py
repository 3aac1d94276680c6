"""Loads adapters into the parts that the processes of a group have, each from the same files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from engine.errors import AdapterRefused, GroupBrokenError
from engine.group.links import Kind, Link
from engine.model.adapters.attaching import Adapters
from engine.model.adapters.checkpoint import AdapterFiles, read_adapter


@dataclass(frozen=True, slots=True)
class AdapterToLoad:
    """An adapter, as a leader names it to its followers."""

    slot: int
    name: str
    path: str
    digest: str

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, content: bytes | bytearray) -> AdapterToLoad:
        return cls(**json.loads(content))

    def into(self, adapters: Adapters) -> str:
        """Load this process's part; return why it cannot be loaded, or nothing."""
        try:
            files = read_adapter(self.name, Path(self.path))
            if files.digest != self.digest:
                return f"its files have the digest {files.digest}"
            adapters.write(self.slot, files)
        except AdapterRefused as error:
            return f"{error.field} {error.found}; accepted: {error.accepted}"
        except Exception as error:  # noqa: BLE001 - it is reported, and the process goes on with steps
            return f"{type(error).__name__}: {error}"
        return ""


class Loading(Protocol):
    """The leader of a group whose processes load adapters."""

    def begin_load(self, slot: int, files: AdapterFiles) -> None:
        """Let followers load an adapter into their parts of a slot that no step reads; one at a time."""

    def end_load(self, files: AdapterFiles) -> None:
        """Wait until all followers have loaded it. Raises AdapterRefused if one could not."""


class GroupAdapters:
    """The adapters of a group's model, from the leader's side; written to from one thread."""

    def __init__(self, own: Adapters, leader: Loading) -> None:
        self._own = own
        self._leader = leader

    def check(self, files: AdapterFiles) -> None:
        """Raise AdapterRefused for an adapter that no slot can hold."""
        self._own.check(files)

    def write(self, slot: int, files: AdapterFiles) -> None:
        """Put an adapter in a slot of all processes, which no step reads.

        Raises AdapterRefused for one that cannot be there.
        """
        self._own.check(files)
        self._leader.begin_load(slot, files)
        try:
            self._own.write(slot, files)
        finally:
            self._leader.end_load(files)


def begin_load(links: Sequence[Link], slot: int, files: AdapterFiles) -> None:
    """Send an adapter's name, files and slot to all followers."""
    content = AdapterToLoad(slot, files.name, str(files.path), files.digest).to_bytes()
    for link in links:
        link.send(Kind.LOAD, [content])


def end_load(links: Sequence[Link], files: AdapterFiles) -> None:
    """Wait until all followers have loaded an adapter. Raises AdapterRefused if one could not."""
    refusals = [link.receive() for link in links]
    for rank, message in enumerate(refusals, 1):
        if message is None:
            raise GroupBrokenError(f"process {rank} of the group is gone")
        if message.content:
            found = f"cannot be loaded by process {rank} of the group ({message.content.decode()})"
            raise AdapterRefused(files.name, files.path, "its files", found, "files that do not change")


def follow_loads(adapters: Adapters | None, link: Link) -> None:
    """Load a follower's parts of adapters while steps come by other links, until the leader is gone."""
    while (message := link.receive()) is not None:
        load_own(adapters, message.content, link)


def load_own(adapters: Adapters | None, content: bytearray, link: Link) -> None:
    """Load a follower's part of an adapter while steps run, and tell the leader."""
    assert adapters is not None, "the leader's model has adapters"
    with suppress(GroupBrokenError):
        link.send(Kind.LOADED, [AdapterToLoad.from_bytes(content).into(adapters).encode()])
