"""Find workers by their announcements in the store, and keep a link to each."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from router.core.model.actions import WorkerCommand
from router.core.model.events import AdaptersChanged, Event
from router.links.worker_link import Computing, WorkerLink
from runtime.state.errors import StoreUnavailable
from runtime.state.records import LinkRecord, LoraRecord, TierRecord, WorkerRecord
from runtime.state.store import Store
from scheduling.memory.tiers import Tier

INTERVAL_S = 0.2
GONE_S = 3.0
"""A worker that has not joined is given up this long after its announcement has expired. A joined worker
keeps its link, whose stream breaks when the worker dies.
"""


@dataclass(frozen=True, slots=True)
class FleetIdentity:
    """The facts that all workers of one fleet have in common."""

    model_name: str
    fingerprint: str
    block_size: int
    sameness: str
    """A digest of what deterministic workers compute; empty for others."""
    model_commit: str
    """The commit of a model of the hub, whose tokenizer the router has; empty for others."""


def digests_by_name(records: Iterable[LoraRecord]) -> dict[str, str]:
    """Return which digest each adapter's name stands for, where workers load adapters while they serve.

    Workers find changed files at different times. The digest that most of them have counts, and among equals
    the first.
    """
    votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        for name, digest in record.adapters.items():
            votes[name][digest] += 1
    return {
        name: min(digests, key=lambda digest: (-digests[digest], digest)) for name, digests in votes.items()
    }


def adapters_of(records: Iterable[WorkerRecord]) -> dict[str, str]:
    """Return the digests of all adapters that workers have, by name."""
    return {name: digest for record in records for name, digest in record.adapters.items()}


class Discovery:
    """Opens a link to every announced worker that fits the fleet."""

    def __init__(
        self,
        store: Store,
        model_name: str,
        link_to: Callable[[WorkerRecord], WorkerLink],
        submit: Callable[[Event], None],
        model_commit: str = "",
    ) -> None:
        self._store = store
        self._model_name = model_name
        self._model_commit = model_commit
        self._link_to = link_to
        self._submit = submit
        self._log = structlog.get_logger()
        self._links: dict[str, tuple[WorkerLink, asyncio.Task[None]]] = {}
        self._missing_since: dict[str, float] = {}
        self.refused: set[str] = set()
        """Keys of announced workers that do not fit the fleet."""
        self.store_responds = False
        """Whether the store responded to the last call."""
        self.fleet: FleetIdentity | None = None
        """Set by the first worker that serves the router's model."""
        self.adapters: Mapping[str, str] = {}
        """The digests of the LoRA adapters that workers have, by name. While no worker is known, those that
        the last ones had: workers that are restarted are back soon."""

        self.refused_adapters: Mapping[str, str] = {}
        """Why workers cannot serve some that they have found, by name."""
        self.loras: Mapping[str, LoraRecord] = {}
        """The adapters of announced workers that load them while they serve, by worker key."""
        self._named: Mapping[str, str] = {}
        """The digests of these adapters, by name."""
        self._told: dict[str, tuple[int, LoraRecord]] = {}
        """The state of these that the core knows, and the stream to the worker at which it was told."""
        self.tiers: Mapping[Tier, Mapping[str, TierRecord]] = {}
        """The tiers that announced workers have beside their pools, by worker key, as at the last look."""

        self.kv_links: Mapping[str, LinkRecord] = {}
        """The same of workers that lend blocks to each other."""

    def send(self, command: WorkerCommand, traceparent: str = "") -> None:
        """Send a command to the worker it names, if there is still a link to it.

        `traceparent` is the span of the attempt that it starts.
        """
        found = self._links.get(command.worker_key)
        if found is not None:
            found[0].send(command, traceparent)

    def computing(self, worker_key: str) -> Computing:
        """Return how a worker computes, as far as it has reported it."""
        found = self._links.get(worker_key)
        return Computing() if found is None else found[0].computing

    @property
    def num_joined(self) -> int:
        """Workers with a live stream."""
        return sum(link.joined for link, _ in self._links.values())

    async def run(self) -> None:
        """Look for workers until cancelled, then close every link."""
        try:
            while True:
                # Links outlive the store; calls for requests report that it is away.
                try:
                    self._update(await self._store.list_workers())
                except StoreUnavailable:
                    self.store_responds = False
                else:
                    self.store_responds = True
                await asyncio.sleep(INTERVAL_S)
        finally:
            for link, task in self._links.values():
                link.close()
                task.cancel()
            await asyncio.gather(*(task for _, task in self._links.values()), return_exceptions=True)

    def _update(self, records: list[WorkerRecord]) -> None:
        announced = {record.key: record for record in records}
        self.tiers = {
            Tier.HOST: {record.key: record.host for record in records if record.host is not None},
            Tier.DISK: {record.key: record.disk for record in records if record.disk is not None},
        }
        self.kv_links = {record.key: record.link for record in records if record.link is not None}
        for key, record in announced.items():
            if key not in self._links and self._fits(record):
                link = self._link_to(record)
                self._links[key] = link, asyncio.create_task(link.run(), name=f"link {key}")
        now = asyncio.get_running_loop().time()
        for key, (link, task) in list(self._links.items()):
            if key in announced or link.joined:
                self._missing_since.pop(key, None)
            elif now - self._missing_since.setdefault(key, now) > GONE_S:
                self._log.info("worker_gone", worker=link.record.worker_id)
                link.close()
                task.cancel()
                del self._links[key], self._missing_since[key]
        self._update_adapters(announced)

    def _update_adapters(self, announced: Mapping[str, WorkerRecord]) -> None:
        """Take over which adapters workers have, and tell the core of workers where that has changed."""
        if not self._links:
            return
        loras: dict[str, LoraRecord] = {}
        for key in self._links:
            # A worker that is linked and not announced has what it had: the store may have lost its entry.
            lora = announced[key].lora if key in announced else self.loras.get(key)
            if lora is not None:
                loras[key] = lora
        if loras != self.loras:
            self.loras = loras
            self._named = digests_by_name(loras.values())
            self.refused_adapters = {
                name: reason for lora in loras.values() for name, reason in lora.refused.items()
            }
        fixed = adapters_of(link.record for link, _ in self._links.values())
        self.adapters = {**self._named, **fixed}
        for key, lora in loras.items():
            link, _ = self._links[key]
            if link.joined and self._told.get(key) != (link.num_joins, lora):
                self._told[key] = link.num_joins, lora
                digests = {*lora.adapters.values(), *lora.loaded}
                self._submit(AdaptersChanged(key, tuple(sorted(digests)), lora.load_s))
        for key in self._told.keys() - loras.keys():
            del self._told[key]

    def _fits(self, record: WorkerRecord) -> bool:
        """Return whether a worker belongs to the fleet.

        Workers with another model, weights or layout cannot take each other's KV. Deterministic workers that
        compute other bits may not continue each other's sequences. An adapter's name stands for the same
        weights at all workers.
        """
        found = FleetIdentity(
            record.model_name, record.fingerprint, record.block_size, record.sameness, record.model_commit
        )
        own_model = self._model_name, self._model_commit
        if (record.model_name, record.model_commit) == own_model and self.fleet is None:
            self.fleet = found
        if found != self.fleet:
            accepted = self.fleet or FleetIdentity(self._model_name, "any", 0, "any", self._model_commit)
            self._refuse(record, str(found), str(accepted))
            return False
        own = adapters_of(link.record for link, _ in self._links.values())
        for name, digest in record.adapters.items():
            if own.get(name, digest) != digest:
                files = f"the fleet's files, of digest {own[name]}, or another name"
                self._refuse(record, f"adapter {name} with files of digest {digest}", files)
                return False
        return True

    def _refuse(self, record: WorkerRecord, has: str, accepted: str) -> None:
        """Log once why a worker does not join."""
        if record.key not in self.refused:
            self.refused.add(record.key)
            self._log.error("worker_refused", worker=record.worker_id, has=has, accepted=accepted)
