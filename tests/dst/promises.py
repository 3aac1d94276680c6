"""The promises of a fleet, as checks on what its processes hold.

Each is checked after the events that can break it, or many times a second.

A promise that broke is a `Broken`: its name, and a sentence with what was found.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from kvtransfer.fence import router_key
from kvtransfer.handoff import READABLE
from router.core.model.session import Phase
from runtime.state.records import LEASE_TTL_S
from scheduling.request import Fence
from tests.dst.fleet import Fleet
from tests.dst.nodes.client import Heard
from tests.dst.nodes.router import RouterNode
from tests.dst.nodes.worker import WorkerNode
from tests.dst.scenario import ROUTER, STORE, Fault, role_of

LOST_S = 3.0
"""A hold that nobody has for this long, although its router lives and reaches the store, has been lost."""
HANGS_S = 1.0


@dataclass(frozen=True, slots=True)
class Broken:
    promise: str
    found: str


class Promises:
    """Checks a fleet. `broken` is set by the first promise that breaks."""

    def __init__(self, fleet: Fleet, calls: list[Heard]) -> None:
        self.broken: Broken | None = None
        silent = [fault for fault in fleet.scenario.faults if _silences(fault)]
        self._holds_may_run_out = sum(fault.lasts_s for fault in silent) > LEASE_TTL_S - 1.0
        self._fleet = fleet
        self._calls = calls
        self._ownerless: dict[tuple[str, str, str], float] = {}
        self._unleased: dict[tuple[str, str, str], float] = {}
        self._unheld: dict[tuple[str, str, int], float] = {}

    def _break(self, promise: str, found: str) -> None:
        if self.broken is None:
            self.broken = Broken(promise, found)

    # After every event of a router

    def after_router(self, router: RouterNode) -> None:
        """Blocks that running groups lease are there, on each decode worker, over all routers."""
        if router.core.state.config.policy.binds_at_arrival or self._holds_may_run_out:
            return  # such policies have no limit, and what ran out is entered again without asking for room
        leased: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for each in self._fleet.living_routers():
            for group in each.core.state.groups.values():
                if group.lease_on is not None:
                    amounts = leased[group.lease_on]
                    amounts[group.key] = max(group.blocks, amounts.get(group.key, 0))
        for worker in self._fleet.living_workers():
            held = leased.get(worker.facts.key)
            if held and sum(held.values()) > worker.facts.num_blocks:
                self._break(
                    "leases fit into their worker",
                    f"{worker.facts.key} has {worker.facts.num_blocks} blocks, and leased are {held}",
                )

    # After every call of a client that got something

    def after_clients(self) -> None:
        for heard in self._calls:
            if heard.wrong:
                self._break("each token once, in order, as undisturbed", f"{heard.request_id}: {heard.wrong}")

    # Several times a second

    def look(self, *, faults_over: bool) -> None:
        self.after_clients()
        for worker in self._fleet.living_workers():
            self._no_two_decodes(worker)
            self._nothing_readable_is_freed(worker)
        for process in self._fleet.processes:
            for failure in process.loop.failures:
                error = failure.get("exception")
                self._break("nothing crashes", f"{process.name}: {failure.get('message')}: {error!r}")
        if faults_over:
            self._running_groups_run()
            self._holds_have_holders()
            self._leases_are_held()

    def _no_two_decodes(self, worker: WorkerNode) -> None:
        """No attempt decodes beside one that ends it, for any choice that both have."""
        by_request: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        for running in worker.hub._sequences._by_handle.values():
            if not running.is_over:
                by_request[running.fence.tenant, running.fence.request_id].append(running)
        for (_, request_id), found in by_request.items():
            for place, running in enumerate(found):
                for other in found[place + 1 :]:
                    common = set(worker.engine.choices_of(running.handle)) & set(
                        worker.engine.choices_of(other.handle)
                    )
                    if common and _compete(running.fence, other.fence):
                        self._break(
                            "no two decodes of one choice",
                            f"{worker.facts.key} runs choices {sorted(common)} of {request_id} as "
                            f"{running.fence} and as {other.fence}",
                        )

    def _nothing_readable_is_freed(self, worker: WorkerNode) -> None:
        blocks = worker.engine.blocks
        for sending in worker.sending.handoffs._by_handle.values():
            handoff = sending.handoff
            for index in range(handoff.num_blocks):
                place = handoff._places[index]
                if handoff.state(index) in READABLE and blocks._num_references[place] == 0:
                    self._break(
                        "nothing that may be read is freed",
                        f"{worker.facts.key} offers block {place} of {handoff.fence.request_id}, "
                        "which is free",
                    )

    def _running_groups_run(self) -> None:
        """Every group that a router takes to run is at its worker, or something about it is on its way."""
        now, seen = self._fleet.scheduler.now, set()
        for router in self._fleet.living_routers():
            for group in router.core.state.groups.values():
                if group.phase is not Phase.RUNNING:
                    continue
                keys = [key for key in (group.prefill_key, group.decode_key) if key is not None]
                links = [router.links[key] for key in keys if key in router.links]
                if any(self._has(router, link, group.handle) for link in links):
                    continue
                name = router.process.name, group.key, group.handle
                seen.add(name)
                if now - self._unheld.setdefault(name, now) > HANGS_S:
                    self._break(
                        "a running group runs somewhere",
                        f"{router.process.name} waits for {group.key} (handle {group.handle}) at {keys}, "
                        "where it is not",
                    )
        self._unheld = {name: at for name, at in self._unheld.items() if name in seen}

    def _has(self, router: RouterNode, link: Any, handle: int) -> bool:
        worker = link.worker
        if not worker.process.runs or not router.process.runs:
            return True  # it goes on, or is found to be dead
        if self._fleet.network.has_traffic(router.process, worker.process):
            return True
        return any(
            running.router_handle == handle and running.session.router_id == router.process.name
            for running in worker.hub._sequences._by_handle.values()
        )

    def _holds_have_holders(self) -> None:
        """Every credit and lease belongs to a group, or ends soon."""
        fleet, store = self._fleet, self._fleet.store
        if (
            store is None
            or not store.process.runs
            or fleet.scheduler.now < fleet.router_died_at + LEASE_TTL_S + LOST_S
        ):
            return  # what a dead router held runs out
        holders: set[tuple[str, str]] = set()
        for router in fleet.living_routers():
            if not router.process.runs:
                return
            state = router.core.state
            for group in state.groups.values():
                keys = (group.credit_on, group.lease_on, group.prefill_key, group.decode_key)
                holders |= {(group.key, key) for key in keys if key is not None}
                if group.early_grant is not None:
                    holders |= {
                        (group.key, group.early_grant.worker_key),
                        (group.key, group.early_grant.decode_key),
                    }
            holders |= {(each.request_key, each.worker_key) for each in state.to_release}
            if len(router.store_calls):
                return
        now, seen = fleet.scheduler.now, set()
        for worker in fleet.living_workers():
            key = worker.facts.key
            for kind, held in (("credit", store.store.credits(key)), ("lease", store.store.leases(key))):
                for request_key in held:
                    if (request_key, key) not in holders:
                        name = kind, request_key, key
                        seen.add(name)
                        if now - self._ownerless.setdefault(name, now) > LOST_S:
                            self._break(
                                "every hold has a holder",
                                f"a {kind} of {request_key} on {key} belongs to nobody",
                            )
        self._ownerless = {name: at for name, at in self._ownerless.items() if name in seen}

    def _leases_are_held(self) -> None:
        """Every lease that a running group relies on is in the store."""
        fleet, store = self._fleet, self._fleet.store
        if store is None or not store.process.runs:
            return
        now, seen = fleet.scheduler.now, set()
        for router in fleet.living_routers():
            if not router.process.runs or router.is_leaving:
                continue
            for group in router.core.state.groups.values():
                if group.phase is not Phase.RUNNING or group.lease_on is None:
                    continue
                if group.key not in store.store.leases(group.lease_on):
                    name = router.process.name, group.key, group.lease_on
                    seen.add(name)
                    if now - self._unleased.setdefault(name, now) > LOST_S:
                        self._break(
                            "a running group's lease is held",
                            f"{router.process.name} relies on a lease of {group.key} on {group.lease_on}, "
                            "which is gone",
                        )
        self._unleased = {name: at for name, at in self._unleased.items() if name in seen}

    # At the end

    def at_end(self) -> None:
        """Nothing is left of requests that are over."""
        fleet = self._fleet
        self.after_clients()
        for router in fleet.living_routers():
            state = router.core.state
            left = {
                "groups": list(state.groups),
                "live sessions": list(state.live),
                "waiting": len(state.waiting),
                "releases": list(state.to_release),
                "streams": list(router.streams),
                "store calls": len(router.store_calls),
            }
            self._expect_none(router.process.name, left)
            kept = state.counters.ttft_promises_kept + state.counters.ttft_promises_broken
            if kept > state.counters.accepted:
                self._break(
                    "promises count once", f"{router.process.name} counts {kept} of {state.counters.accepted}"
                )
        for worker in fleet.living_workers():
            left = {
                "sequences": len(worker.hub._sequences),
                "handoffs": len(worker.sending.handoffs),
                "specs": list(worker.sending._specs),
                "parts": list(worker.sending._parts),
                "receives": [] if worker.receiving is None else list(worker.receiving._pending),
                "used blocks": worker.engine.blocks.num_taken_blocks,
            }
            self._expect_none(worker.facts.key, left)
        if fleet.store is not None:
            store = fleet.store.store
            left = {"queue": list(store._entries)}
            for worker in fleet.living_workers():
                left[f"leases on {worker.facts.key}"] = store.leases(worker.facts.key)
                left[f"credits on {worker.facts.key}"] = store.credits(worker.facts.key)
            self._expect_none("redis", left)

    def _expect_none(self, name: str, left: dict[str, Any]) -> None:
        for what, found in left.items():
            if found:
                self._break("nothing is left", f"{name} has {what}: {found}")


def _silences(fault: Fault) -> bool:
    """Return whether Redis does not hear a router for as long as the fault lasts."""
    is_link = fault.kind not in ("kill", "stop", "drain", "jump")
    stands_still = fault.kind == "stop" and role_of(fault.target) in (ROUTER, STORE)
    return stands_still or (is_link and STORE in (fault.target, fault.peer))


def _compete(one: Fence, other: Fence) -> bool:
    """Return whether at most one of two attempts may run.

    Two routers that serve the same session do not know each other.
    """
    return one.session != other.session or router_key(one) == router_key(other)
