import os
import re
import stat
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from baton.fleet import FleetSpec
from baton.fleet.processes.errors import RunDirUnusable
from baton.fleet.processes.process import READY_LINE
from baton.fleet.rundir import KEPT_RUNS, claim, listed, next_run_dir, runs_of
from baton.fleet.running import candidates
from baton.fleet.spec import (
    PLACEMENTS,
    POLICIES,
    QUANTISATIONS,
    WITHOUT_REDIS,
    Surroundings,
    gateway_processes,
    service_processes,
)
from engine.model.quantised.quantisation import Quantisation
from router import config
from scheduling import policies
from scheduling.placement import Placement

MODEL = Path("/models/demo")
AROUND = Surroundings(
    checkout=Path("/checkout"),
    model=str(MODEL),
    draft_model="/models/small",
    redis_url="redis://127.0.0.1:7000/0",
    gateway_redis_url="redis://127.0.0.1:7001/0",
    shm_dir=None,
)


def command(spec: FleetSpec, name: str) -> list[str]:
    [found] = [process for process in service_processes(spec, AROUND) if process.name == name]
    return list(found.command)


def value(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"prefill": -1}, "prefill is -1: it must be 0 or more"),
        ({"decode": 0}, "decode is 0: it must be 1 or more"),
        ({"routers": 0}, "routers is 0: it must be 1 or more"),
        ({"placement": "random"}, "placement is 'random': it must be one of disaggregated, aggregated"),
        ({"quantisation": "int3"}, "quantisation is 'int3': it must be one of none, int8"),
        ({"quantisation": "int8", "timed": "p"}, "quantisation is set with timed"),
        ({"prove_model": True, "timed": "p"}, "prove_model is set with timed"),
        ({"share_prefixes": True, "timed": "p"}, "share_prefixes is set with timed"),
        ({"speculate": "maybe"}, "speculate is 'maybe': it must be one of none, lookup"),
        ({"lora": ["red"]}, "lora has 'red': it must be NAME=PATH"),
        ({"lora": ["a=p"], "timed": "p"}, "lora is set with timed"),
        ({"lora": ["a=p"], "deterministic": True}, "lora is set with deterministic"),
        ({"lora_dir": Path("p"), "lora": ["a=p"]}, "lora_dir is set with lora: it must be one of the two"),
        ({"lora_dir": Path("p"), "deterministic": True}, "lora_dir is set with deterministic"),
        ({"lora_dir": Path("p"), "timed": "p"}, "lora_dir is 'p' with timed"),
        ({"lora_memory_mb": 9}, "lora_memory_mb is 9: it must be 1 or more, with lora_dir"),
        ({"lora_dir": Path("p"), "lora_rank": 0}, "lora_rank is 0: it must be 1 or more, with lora_dir"),
        ({"draft_model": Path("small"), "timed": "p"}, "draft_model is 'small' with timed"),
        ({"speculate": "lookup", "timed": "p"}, "speculate is 'lookup' with timed"),
        ({"kv_disk": Path("d"), "timed": "p"}, "kv_disk is 'd' with timed"),
        ({"kv_host_memory_mb": 5, "timed": "p"}, "kv_host_memory_mb is '5' with timed"),
        ({"kv_host_memory_mb": -1}, "kv_host_memory_mb is -1: it must be 0 (none) or more"),
        ({"tensor_parallel": 0}, "tensor_parallel is 0: it must be 1 or more"),
        ({"pipeline_parallel": 0}, "pipeline_parallel is 0: it must be 1 or more"),
        ({"pipeline_parallel": 2, "timed": "p"}, "pipeline_parallel is '2' with timed"),
        ({"tensor_parallel": 2, "timed": "p"}, "tensor_parallel is '2' with timed"),
        ({"kv_disk_mb": 5}, "kv_disk_mb is 5: it must be 1 or more, with kv_disk"),
        ({"kv_disk": Path("d"), "kv_disk_mb": 0}, "kv_disk_mb is 0: it must be 1 or more"),
        ({"policy": "fifo"}, "policy is 'fifo': it must be one of static, dynamic, orca"),
        ({"placement": "disaggregated", "prefill": 0}, "needs at least 1"),
        ({"secure": Path("s"), "redis_url": "redis://127.0.0.1/0"}, "it must be rediss:// or unix://"),
        ({"router_port": 70000}, "router_port is 70000"),
        ({"router_port": 65535, "routers": 2}, "router_port is 65535: it must be 0 (a free one) to 65534"),
        ({"gateways": -1}, "gateways is -1: it must be 0 or more"),
        ({"gateways": 1, "http_port": 65536}, "http_port is 65536: it must be 0 (a free one) to 65535"),
        (
            {"gateways": 1, "http_port": 8001, "routers": 2, "router_port": 8000},
            "a port that no router takes",
        ),
        ({"threads": -1}, "threads is -1: it must be 0"),
        ({"extra_args": {"decode-3": ()}}, "there are router-0, prefill-0, decode-0"),
    ],
)
def test_a_wrong_spec_is_refused_by_field_value_and_what_would_do(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        FleetSpec(model=MODEL, **wrong)


def test_several_routers_take_consecutive_ports_or_free_ones() -> None:
    fixed = FleetSpec(model=MODEL, routers=2, router_port=50051)
    assert value(command(fixed, "router-0"), "--listen") == "127.0.0.1:50051"
    assert value(command(fixed, "router-1"), "--listen") == "127.0.0.1:50052"
    free = FleetSpec(model=MODEL, routers=2)
    assert value(command(free, "router-1"), "--listen") == "127.0.0.1:0"


def test_the_names_are_those_that_the_services_take() -> None:
    assert set(POLICIES) == set(policies.NAMES)
    assert config.WITHOUT_REDIS == WITHOUT_REDIS
    assert tuple(choice.value for choice in Quantisation) == QUANTISATIONS
    assert set(PLACEMENTS) == {placement.value for placement in Placement}


def test_only_decode_workers_are_told_to_guess() -> None:
    spec = FleetSpec(model=MODEL, speculate="lookup", draft_model=Path("small"))
    assert value(command(spec, "decode-0"), "--speculate") == "lookup"
    assert value(command(spec, "decode-0"), "--draft-model") == AROUND.draft_model
    for name in ("router-0", "prefill-0"):
        assert not {"--speculate", "--draft-model"} & set(command(spec, name))


def test_every_worker_has_the_same_number_of_processes() -> None:
    spec = FleetSpec(model=MODEL, tensor_parallel=2)
    for name in ("prefill-0", "decode-0"):
        assert value(command(spec, name), "--tensor-parallel") == "2"
    assert "--tensor-parallel" not in command(spec, "router-0")
    assert "--tensor-parallel" not in command(FleetSpec(model=MODEL), "decode-0")


def test_every_worker_has_the_same_number_of_stages() -> None:
    spec = FleetSpec(model=MODEL, pipeline_parallel=3)
    for name in ("prefill-0", "decode-0"):
        assert value(command(spec, name), "--pipeline-parallel") == "3"
    assert "--pipeline-parallel" not in command(spec, "router-0")


def test_only_workers_are_told_to_prove_their_model() -> None:
    spec = FleetSpec(model=MODEL, prove_model=True)
    for name in ("prefill-0", "decode-0"):
        assert "--prove-model" in command(spec, name)
    assert "--prove-model" not in command(spec, "router-0")


def test_only_workers_are_told_to_share_prefixes() -> None:
    spec = FleetSpec(model=MODEL, share_prefixes=True)
    for name in ("prefill-0", "decode-0"):
        assert "--share-prefixes" in command(spec, name)
    assert "--share-prefixes" not in command(spec, "router-0")
    assert "--share-prefixes" not in command(FleetSpec(model=MODEL), "decode-0")


def test_routers_are_told_what_control_tokens_in_chats_mean() -> None:
    spec = FleetSpec(model=MODEL, routers=2, special_tokens_in_content="refuse")
    for name in ("router-0", "router-1"):
        assert value(command(spec, name), "--special-tokens-in-content") == "refuse"
    assert "--special-tokens-in-content" not in command(spec, "decode-0")
    with pytest.raises(ValueError, match="special_tokens_in_content is 'maybe'"):
        FleetSpec(model=MODEL, special_tokens_in_content="maybe")


def test_routers_are_told_whose_sampling_defaults_hold() -> None:
    spec = FleetSpec(model=MODEL, generation_config="none")
    assert value(command(spec, "router-0"), "--generation-config") == "none"
    assert "--generation-config" not in command(spec, "decode-0")
    with pytest.raises(ValueError, match="generation_config is 'ours': it must be one of model, none"):
        FleetSpec(model=MODEL, generation_config="ours")


def test_adapters_go_to_all_workers_by_absolute_paths() -> None:
    spec = FleetSpec(model=MODEL, lora=["red=adapters/red", "blue=/b"])
    for name in ("prefill-0", "decode-0"):
        words = command(spec, name)
        given = [word for before, word in pairwise(words) if before == "--lora"]
        assert given == [f"red={Path('adapters/red').resolve()}", "blue=/b"]
    assert "--lora" not in command(spec, "router-0")


def test_all_workers_load_adapters_from_one_folder() -> None:
    spec = FleetSpec(model=MODEL, lora_dir=Path("adapters"), lora_memory_mb=7, lora_rank=8)
    for name in ("prefill-0", "decode-0"):
        assert value(command(spec, name), "--lora-dir") == str(Path("adapters").resolve())
        assert value(command(spec, name), "--lora-memory-mb") == "7"
        assert value(command(spec, name), "--lora-rank") == "8"
    assert "--lora-dir" not in command(spec, "router-0")


def test_each_worker_has_a_folder_for_kv_of_its_own() -> None:
    spec = FleetSpec(model=MODEL, kv_disk=Path("/kv"), kv_disk_mb=7)
    for name in ("prefill-0", "decode-0"):
        assert value(command(spec, name), "--kv-disk") == f"/kv/{name}"
        assert value(command(spec, name), "--kv-disk-mb") == "7"
    assert "--kv-disk" not in command(spec, "router-0")
    assert "--kv-disk" not in command(FleetSpec(model=MODEL), "decode-0")


def test_workers_have_host_memory_for_kv_and_routers_have_none() -> None:
    spec = FleetSpec(model=MODEL, kv_host_memory_mb=7)
    for name in ("prefill-0", "decode-0"):
        assert value(command(spec, name), "--kv-host-memory-mb") == "7"
    assert "--kv-host-memory-mb" not in command(spec, "router-0")
    assert "--kv-host-memory-mb" not in command(FleetSpec(model=MODEL), "decode-0")


def test_what_is_quantised_goes_to_workers_only() -> None:
    spec = FleetSpec(model=MODEL, quantisation="int8")
    for name in ("prefill-0", "decode-0"):
        assert value(command(spec, name), "--quantisation") == "int8"
    assert "--quantisation" not in command(spec, "router-0")


def test_policy_and_profile_go_to_routers_and_workers_alike(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    named = FleetSpec(model=MODEL, policy="chunked", timed="h200-llama-3.1-8b")
    for name in ("router-0", "prefill-0", "decode-0"):
        assert value(command(named, name), "--policy") == "chunked"
        assert value(command(named, name), "--timed") == "h200-llama-3.1-8b"
        own = command(FleetSpec(model=MODEL, timed="own.json"), name)
        assert value(own, "--timed") == str(tmp_path / "own.json")
        assert "--policy" not in own


def test_arguments_of_a_process_come_after_those_of_its_kind() -> None:
    spec = FleetSpec(
        model=MODEL, prefill=2, extra_args={"prefill": ("--x", "kind"), "prefill-1": ("--x", "own")}
    )
    assert command(spec, "prefill-0")[-2:] == ["--x", "kind"]
    assert command(spec, "prefill-1")[-4:] == ["--x", "kind", "--x", "own"]
    assert "--x" not in command(spec, "decode-0")


def test_workers_learn_how_many_share_the_cores() -> None:
    shared = command(FleetSpec(model=MODEL, prefill=2, decode=3), "decode-0")
    assert value(shared, "--workers-per-host") == "5"
    assert "--threads" not in shared
    assert value(command(FleetSpec(model=MODEL, threads=3), "decode-0"), "--threads") == "3"
    assert "--threads" not in command(FleetSpec(model=MODEL), "router-0")


def test_only_workers_are_told_of_shared_memory() -> None:
    around = replace(AROUND, shm_dir=Path("/shm/own"))
    told = [p.name for p in service_processes(FleetSpec(model=MODEL), around) if "--shm-dir" in p.command]
    assert told == ["prefill-0", "decode-0"]


def test_a_gateway_calls_every_router_and_is_told_of_no_model() -> None:
    spec = FleetSpec(
        model=MODEL, gateways=2, http_port=8000, drain_s=3, extra_args={"gateway": ("--connect-s", "1")}
    )
    first, second = (list(p.command) for p in gateway_processes(spec, AROUND, ("h:1", "h:2")))
    assert first[2] == "gateway"
    assert value(first, "--listen") == "127.0.0.1:8000"
    assert value(second, "--listen") == "127.0.0.1:8001"
    assert " ".join(second).endswith("--router h:1 --router h:2 --connect-s 1")
    assert value(second, "--drain-s") == "3"
    assert value(first, "--redis") == AROUND.gateway_redis_url
    assert "--model" not in first
    with_others = replace(spec, further_fleets=(("b:1", "b:2"), ("c:1",)))
    told, _ = (p.command for p in gateway_processes(with_others, AROUND, ("h:1",)))
    assert "--router h:1 --fleet b:1,b:2 --fleet c:1" in " ".join(told)


def test_gateways_are_told_what_they_take() -> None:
    [gateway] = gateway_processes(FleetSpec(model=MODEL, gateways=1, strict_fields=True), AROUND, ("h:1",))
    assert "--strict-fields" in gateway.command
    [plain] = gateway_processes(FleetSpec(model=MODEL, gateways=1), AROUND, ("h:1",))
    assert "--strict-fields" not in plain.command


def test_routers_alone_are_told_further_names_of_the_model() -> None:
    spec = FleetSpec(model=MODEL, gateways=1, served_model_names=("gpt-5", "a:b"))
    told = {p.name: " ".join(p.command) for p in service_processes(spec, AROUND)}
    assert "--served-model-name gpt-5 --served-model-name a:b" in told.pop("router-0")
    [gateway] = gateway_processes(spec, AROUND, ("h:1",))
    assert "--served-model-name" not in " ".join([*told.values(), *gateway.command])


def test_the_ready_line_gives_both_addresses() -> None:
    found = READY_LINE.search("READY decode decode-0 address=127.0.0.1:41 metrics=127.0.0.1:42")
    assert found is not None
    assert found.group("address", "metrics") == ("127.0.0.1:41", "127.0.0.1:42")
    assert READY_LINE.search("not READY decode decode-0 address=127.0.0.1:41") is None


def test_runs_are_numbered_upwards_ignored_by_git_and_the_oldest_go(tmp_path: Path) -> None:
    folders = [next_run_dir(tmp_path) for _ in range(KEPT_RUNS + 3)]
    assert [folder.name for folder in folders] == [str(n) for n in range(1, KEPT_RUNS + 4)]
    kept = sorted(int(folder.name) for folder in (tmp_path / ".baton" / "runs").iterdir())
    assert kept == list(range(4, KEPT_RUNS + 4))
    assert (tmp_path / ".baton" / ".gitignore").read_text(encoding="utf-8") == "*\n"


async def test_the_folder_of_a_living_fleet_stays_however_old(tmp_path: Path) -> None:
    oldest = next_run_dir(tmp_path)
    assert stat.S_IMODE(oldest.stat().st_mode) == 0o700
    descriptor = await claim(oldest)
    for _ in range(KEPT_RUNS + 1):
        next_run_dir(tmp_path)
    assert oldest.exists()
    os.close(descriptor)
    next_run_dir(tmp_path)
    assert not oldest.exists()


def test_a_run_elsewhere_is_the_newest_of_the_checkout_while_it_lasts(tmp_path: Path) -> None:
    runs, elsewhere = runs_of(tmp_path), tmp_path / "elsewhere"
    first = next_run_dir(tmp_path)
    elsewhere.mkdir()
    with listed(tmp_path, elsewhere) as is_listed, listed(tmp_path, first):
        assert is_listed
        assert candidates(runs) == [runs, elsewhere, first]
    assert candidates(runs) == [runs, first]


def test_a_link_that_a_killed_launcher_left_goes_with_the_old_runs(tmp_path: Path) -> None:
    runs, elsewhere = runs_of(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "log").touch()
    runs.mkdir(parents=True)
    for number in ("1", "2"):
        (runs / number).symlink_to(elsewhere)
    assert candidates(runs) == [runs, elsewhere]
    for _ in range(KEPT_RUNS):
        next_run_dir(tmp_path)
    assert elsewhere not in candidates(runs)
    assert (elsewhere / "log").exists()


def test_a_checkout_that_cannot_be_written_lists_no_run(tmp_path: Path) -> None:
    (tmp_path / ".baton").touch()
    with listed(tmp_path, tmp_path / "elsewhere") as is_listed:
        assert not is_listed


async def test_a_folder_of_logs_that_others_can_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.close(await claim(tmp_path))
    for mode in (0o777, 0o1777):
        tmp_path.chmod(mode)
        with pytest.raises(RunDirUnusable, match=f"its mode {mode:04o} lets others write to it"):
            await claim(tmp_path)
    tmp_path.chmod(0o775)  # as a umask of 002 leaves it
    os.close(await claim(tmp_path))
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(RunDirUnusable, match=f"it belongs to user {user}"):
        await claim(tmp_path)
