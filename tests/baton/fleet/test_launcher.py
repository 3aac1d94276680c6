import asyncio
import ctypes
import math
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import redis.asyncio

from baton.fleet import Fleet, FleetEvent, FleetSpec
from baton.fleet.processes import process as process_module
from baton.fleet.processes.errors import (
    GatewayNotInstalled,
    PortUnusable,
    ProcessFailed,
    RunDirInUse,
    RunDirUnusable,
    StartTimeout,
)
from baton.fleet.processes.events import (
    FleetStopping,
    ProcessDied,
    ProcessReady,
    ProcessStarted,
    ProcessStarting,
)
from baton.fleet.processes.redis import GATEWAY_REDIS, REDIS, redis_process
from tests.patience import PATIENCE_S

MakeSpec = Callable[..., FleetSpec]
pytestmark = pytest.mark.integration

PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


async def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


async def until_gone(pids: Sequence[int]) -> None:
    await until(lambda: not any(alive(pid) for pid in pids))


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports on which a process listens."""
    sockets = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                found.append(int(local.rpartition(":")[2], 16))
    return found


def folder_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/cwd").readlink()


def said(log: str, word: str) -> str:
    """Return what a stand-in wrote into its log after `word`."""
    return log.split(f"{word}: ")[1].split(maxsplit=1)[0]


async def test_every_process_has_a_name_an_address_and_its_own_group(
    make_spec: MakeSpec,
) -> None:
    async with Fleet(make_spec(prefill=1, decode=2, routers=2)) as fleet:
        names = [process.name for process in fleet.processes]
        assert names == ["redis", "router-0", "router-1", "prefill-0", "decode-0", "decode-1"]
        assert fleet.router_addresses == ("127.0.0.1:1", "127.0.0.1:1")
        assert fleet.process("decode-1").metrics_address == "127.0.0.1:2"
        assert all(os.getpgid(process.pid) == process.pid for process in fleet.processes)
        pids = [process.pid for process in fleet.processes]
    assert not any(alive(pid) for pid in pids)
    assert [process.exit_code for process in fleet.processes] == [0] * 6


async def test_the_private_redis_is_real_keeps_nothing_and_evicts_nothing(make_spec: MakeSpec) -> None:
    async with Fleet(make_spec()) as fleet, redis.asyncio.from_url(fleet.redis_url) as client:
        assert await client.ping()
        settings = await client.info()
        assert settings["maxmemory_policy"] == "noeviction"
        assert settings["aof_enabled"] == 0
        await client.set("{baton}:key", 1)
        folder = folder_of(fleet.process("redis").pid)
        assert sorted(path.name for path in folder.iterdir()) == ["redis.sock", "users.acl"]
    assert not folder.exists()


async def test_the_private_redis_has_no_port_and_writes_no_file(make_spec: MakeSpec) -> None:
    async with Fleet(make_spec(gateways=1)) as fleet:
        for name, url in (("redis", fleet.redis_url), ("redis-gateway", fleet.gateway_redis_url)):
            process = fleet.process(name)
            path = Path(process.address)
            assert url == f"unix://{path}"
            assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]
            assert not listening_ports(process.pid)
            async with redis.asyncio.from_url(url) as client:
                for command in ("CONFIG SET dir /tmp", "SAVE", "BGREWRITEAOF", "MODULE LIST", "ACL LIST"):
                    with pytest.raises(redis.exceptions.NoPermissionError):
                        await client.execute_command(command)


def test_the_redis_of_gateways_logs_to_the_disk_first(tmp_path: Path) -> None:
    for name, setting in ((GATEWAY_REDIS, "yes"), (REDIS, "no")):
        command = redis_process(name, Path("redis-server"), tmp_path).command
        assert command[command.index("--appendonly") + 1] == setting
        assert command[command.index("--appendfsync") + 1] == "always"


async def test_a_given_redis_is_used_and_none_is_started(make_spec: MakeSpec) -> None:
    async with Fleet(make_spec(redis_url="redis://127.0.0.1:1/5")) as fleet:
        assert "redis" not in [process.name for process in fleet.processes]
        assert "--redis redis://127.0.0.1:1/5" in fleet.process("router-0").log_tail()


async def test_events_tell_of_every_start_and_of_the_stop(make_spec: MakeSpec) -> None:
    events: list[FleetEvent] = []
    async with Fleet(make_spec(), events.append):
        pass
    started = [event.name for event in events if isinstance(event, ProcessStarted)]
    ready = {event.name for event in events if isinstance(event, ProcessReady)}
    assert started == ["redis", "router-0", "prefill-0", "decode-0"]
    assert ready == set(started)
    assert events[-1] == FleetStopping(processes=4)


async def test_a_refused_configuration_is_reported_with_last_words(
    make_spec: MakeSpec,
) -> None:
    spec = make_spec(extra_args={"decode": ("--act", "refuse")})
    pids: list[int] = []
    with pytest.raises(ProcessFailed, match="configuration was refused") as failure:
        await Fleet(spec, lambda event: pids.extend(_pid(event))).__aenter__()
    assert failure.value.name == "decode-0"
    assert failure.value.exit_code == 2
    assert "block_size is 17" in failure.value.tail
    await until_gone(pids)


async def test_a_port_that_is_taken_is_refused_before_anything_starts(make_spec: MakeSpec) -> None:
    events: list[FleetEvent] = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortUnusable, match=f"127.0.0.1:{port}: Address already in use; .* --port"):
            await Fleet(make_spec(router_port=port), events.append).__aenter__()
    assert events == []


async def test_a_taken_http_port_is_refused_by_the_flag_that_names_another(make_spec: MakeSpec) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortUnusable, match=rf"no gateway .*:{port}: .* with --http-port, or 0 for any"):
            await Fleet(make_spec(gateways=1, http_port=port)).__aenter__()


async def test_missing_packages_of_the_gateway_are_named_with_a_remedy(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    events: list[FleetEvent] = []
    with pytest.raises(GatewayNotInstalled, match=r"needs fastapi, .*gateway\.lock, .* --no-http"):
        await Fleet(make_spec(gateways=1), events.append).__aenter__()
    assert events == []


async def test_a_gateway_starts_after_the_routers_and_stops_before_them(make_spec: MakeSpec) -> None:
    """Both are deaf to SIGTERM, so each takes its whole grace, and the router's end cannot be missed."""
    events: list[FleetEvent] = []
    deaf = ("--act", "deaf")
    spec = make_spec(gateways=1, extra_args={"gateway": deaf, "router": deaf}, stop_grace_s=1.0)
    async with Fleet(spec, events.append) as fleet:
        gateway, router = fleet.process("gateway-0"), fleet.process("router-0")
        assert "--router 127.0.0.1:1 --act deaf" in " ".join(gateway.spec.command)
        assert fleet.gateway_urls == ("http://127.0.0.1:1",)
        stopping = asyncio.create_task(fleet.stop())
        await until(lambda: not gateway.running or not router.running)
        assert router.running
        await stopping
    names = [
        (type(event), event.name) for event in events if isinstance(event, (ProcessStarted, ProcessReady))
    ]
    assert names.index((ProcessReady, "router-0")) < names.index((ProcessStarted, "gateway-0"))


async def test_an_impossible_log_folder_is_refused_before_any_start(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    events: list[FleetEvent] = []
    with pytest.raises(RunDirUnusable, match="Not a directory; name a folder of your own with --run-dir"):
        await Fleet(make_spec(run_dir=tmp_path / "file" / "logs"), events.append).__aenter__()
    assert events == []


def _pid(event: FleetEvent) -> list[int]:
    return [event.pid] if isinstance(event, ProcessStarted) else []


async def test_a_process_that_never_gets_ready_stops_the_start(make_spec: MakeSpec) -> None:
    spec = make_spec(extra_args={"prefill-0": ("--act", "mute")}, standstill_s=8.0)
    pids: list[int] = []
    with pytest.raises(StartTimeout) as timeout:
        await Fleet(spec, lambda event: pids.extend(_pid(event))).__aenter__()
    assert timeout.value.name == "prefill-0"
    assert len(pids) == 4
    await until_gone(pids)


async def test_a_start_that_goes_on_is_waited_for_beyond_any_limit(make_spec: MakeSpec) -> None:
    spec = make_spec(extra_args={"prefill-0": ("--act", "slow")}, standstill_s=3.0)
    events: list[FleetEvent] = []
    async with Fleet(spec, events.append):
        pass
    [ready] = [event for event in events if isinstance(event, ProcessReady) and event.name == "prefill-0"]
    assert ready.took_s > spec.standstill_s
    told = [
        event.doing for event in events if isinstance(event, ProcessStarting) and event.name == "prefill-0"
    ]
    assert told[-1] == "reading weights, 7 of 8"


async def test_a_start_that_stands_still_is_named_with_what_it_was_at(make_spec: MakeSpec) -> None:
    spec = make_spec(extra_args={"prefill-0": ("--act", "stall")}, standstill_s=3.0)
    events: list[FleetEvent] = []
    with pytest.raises(
        StartTimeout, match=r"prefill-0 stood still for 3 s \(reading weights, 340 of 803 MB\)"
    ):
        await Fleet(spec, events.append).__aenter__()
    silences = [entry.silent_s for entry in events if isinstance(entry, ProcessStarting)]
    assert max(silences) > 1.0
    await until_gone([pid for event in events for pid in _pid(event)])


async def test_a_killed_process_is_reported_and_the_others_go_on(make_spec: MakeSpec) -> None:
    async with Fleet(make_spec()) as fleet:
        fleet.process("prefill-0").kill()
        death = await fleet.next_death()
        assert (death.name, death.exit_code) == ("prefill-0", -signal.SIGKILL)
        assert "SIGKILL" in death.meaning
        assert fleet.process("decode-0").running


async def test_a_later_death_leaves_its_exit_code_and_last_lines(make_spec: MakeSpec) -> None:
    deaths: list[FleetEvent] = []
    async with Fleet(make_spec(extra_args={"decode": ("--act", "die-soon")}), deaths.append) as fleet:
        death = await fleet.next_death()
        assert death.exit_code == 4
        assert "cannot serve this model" in death.meaning
        arguments, *last_words = death.tail.splitlines()
        assert arguments.startswith("arguments:")
        assert last_words == ["stalled: b", "out of luck"]
    assert [event for event in deaths if isinstance(event, ProcessDied)] == [death]


async def test_a_process_that_ignores_the_polite_request_is_killed(make_spec: MakeSpec) -> None:
    spec = make_spec(extra_args={"router": ("--act", "deaf")}, stop_grace_s=0.1)
    async with Fleet(spec) as fleet:
        router = fleet.process("router-0")
    assert router.exit_code == -signal.SIGKILL


async def test_a_paused_process_can_still_be_stopped(make_spec: MakeSpec) -> None:
    async with Fleet(make_spec()) as fleet:
        fleet.process("decode-0").pause()
    assert fleet.process("decode-0").exit_code == 0


async def test_children_of_a_killed_process_go_with_it(make_spec: MakeSpec) -> None:
    async with Fleet(make_spec(extra_args={"router": ("--act", "child")})) as fleet:
        router = fleet.process("router-0")
        child = int(said(router.log_tail(), "child"))
        assert alive(child)
        os.kill(router.pid, signal.SIGKILL)
        await fleet.next_death()
        await until_gone([child])


@pytest.fixture
def slow_init() -> Iterator[None]:
    """Let orphans become children of this process, which does not reap them, like a slow init."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
    yield
    assert prctl(PR_SET_CHILD_SUBREAPER, 0) == 0


async def test_an_ended_child_that_init_has_not_reaped_is_not_waited_for(
    slow_init: None, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "HELPERS_GRACE_S", math.inf)
    async with Fleet(make_spec(extra_args={"router": ("--act", "semaphore")})) as fleet:
        router = fleet.process("router-0")
        router.kill()
        await fleet.next_death()
        assert os.waitid(os.P_PGID, router.pid, os.WEXITED | os.WNOHANG), "the resource tracker has ended"


async def test_nothing_stays_in_shared_memory_even_when_a_worker_is_killed(make_spec: MakeSpec) -> None:
    async with Fleet(make_spec(extra_args={"prefill": ("--act", "litter")})) as fleet:
        prefill = fleet.process("prefill-0")
        folder = Path(said(prefill.log_tail(), "shm"))
        assert (folder / "socket").exists()
        prefill.kill()
        await fleet.next_death()
    assert not folder.exists()


async def test_a_killed_service_leaves_no_semaphore_of_its_helpers(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "HELPERS_GRACE_S", PATIENCE_S)
    async with Fleet(make_spec(extra_args={"router": ("--act", "semaphore")})) as fleet:
        router = fleet.process("router-0")
        semaphore = Path(f"/dev/shm/sem.{said(router.log_tail(), 'semaphore').lstrip('/')}")
        assert semaphore.exists()
        router.kill()
        await fleet.next_death()
        assert not semaphore.exists()


_LAUNCHER = """
import asyncio, sys
from pathlib import Path
from baton.fleet import Fleet, FleetSpec
from baton.fleet.processes.events import ProcessStarted

async def main():
    root = Path(sys.argv[1])
    spec = FleetSpec(model=root, checkout=root, run_dir=root / "run", await_connections=False,
                     extra_args={"router": ("--act", "child"), "prefill": ("--act", "litter")})
    async with Fleet(spec) as fleet:
        print(*(process.pid for process in fleet.processes), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_launcher_killed_hard_leaves_no_process_and_no_folder(checkout: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER, str(checkout)], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    pids = [int(word) for word in (await asyncio.to_thread(launcher.stdout.readline)).split()]
    assert len(pids) == 4
    logs = checkout / "run"
    pids.append(int(said((logs / "router-0.log").read_text(encoding="utf-8"), "child")))
    folders = [folder_of(pids[0]), Path(said((logs / "prefill-0.log").read_text(encoding="utf-8"), "shm"))]
    assert all(folder.is_dir() for folder in folders)
    assert all(alive(pid) for pid in pids)
    launcher.kill()
    # It has ended, and its parent has not noticed yet, so its id is still there.
    await asyncio.to_thread(os.waitid, os.P_PID, launcher.pid, os.WEXITED | os.WNOWAIT)
    spec = FleetSpec(model=checkout, checkout=checkout, run_dir=logs, await_connections=False)
    async with Fleet(spec):  # waits until the folder is free
        assert not any(alive(pid) for pid in pids)
        assert not any(folder.exists() for folder in folders)
    launcher.wait()
    launcher.stdout.close()


async def test_the_folder_of_a_living_fleet_is_refused_naming_its_launcher(make_spec: MakeSpec) -> None:
    spec = make_spec()
    async with Fleet(spec) as first:
        with pytest.raises(RunDirInUse) as refused:
            await Fleet(make_spec()).__aenter__()
        assert str(refused.value) == (
            f"{spec.run_dir} is the folder of a fleet that runs, started by process {os.getpid()}; name "
            f"another folder with --run-dir, or end that fleet: kill {os.getpid()}"
        )
        assert all(process.running for process in first.processes)
    async with Fleet(make_spec()):
        pass


async def test_a_failed_start_has_the_reasons_of_this_start_alone(make_spec: MakeSpec) -> None:
    for _ in range(2):
        with pytest.raises(ProcessFailed) as caught:
            await Fleet(make_spec(extra_args={"router": ("--act", "refuse")})).__aenter__()
        assert caught.value.tail.count("block_size is 17") == 1
    assert caught.value.log_path.read_text(encoding="utf-8").count("block_size is 17") == 2


async def test_only_the_fleets_user_reads_what_its_processes_write(make_spec: MakeSpec) -> None:
    spec = make_spec(extra_args={"prefill": ("--act", "litter")})
    assert spec.run_dir is not None
    spec.run_dir.mkdir(mode=0o755)
    (spec.run_dir / "router-0.log").touch(mode=0o644)
    async with Fleet(spec) as fleet:
        written = [Path(said(fleet.process("prefill-0").log_tail(), "shm")) / "socket"]
        written += [process.log_path for process in fleet.processes]
        for path in written:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


async def test_a_cancelled_start_leaves_nothing(make_spec: MakeSpec) -> None:
    pids: list[int] = []
    all_started = asyncio.Event()

    def watch(event: FleetEvent) -> None:
        pids.extend(_pid(event))
        if len(pids) == 4:
            all_started.set()

    spec = make_spec(extra_args={"router": ("--act", "mute")})
    start = asyncio.create_task(Fleet(spec, watch).__aenter__())
    await all_started.wait()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not any(alive(pid) for pid in pids)


async def test_stopping_twice_is_harmless(make_spec: MakeSpec) -> None:
    async with Fleet(make_spec()) as fleet:
        await fleet.stop()
    await fleet.stop()


async def test_an_unknown_process_is_answered_with_the_names_there_are(make_spec: MakeSpec) -> None:
    async with Fleet(make_spec()) as fleet:
        with pytest.raises(KeyError, match="redis, router-0, prefill-0, decode-0"):
            fleet.process("decode-7")
