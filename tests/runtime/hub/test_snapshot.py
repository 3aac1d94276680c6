"""Fetching a model: which files, in which form, and what survives interruptions and wrong content."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir

from tests.hub import (
    MODEL,
    ROOT,
    Hub,
    blobs_of,
    commit_of,
    environment_of,
    fetch_command,
    git_sha1,
    names_in,
    run_fetch,
    sha256,
    snapshot_of,
)

pytestmark = pytest.mark.integration

FACTS = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
}
WEIGHTS = "model.safetensors"
FIRST, SECOND = commit_of("first"), commit_of("second")


def shard(hub: Hub) -> None:
    """Cut the weights in two files with an index."""
    content = hub.files.pop(WEIGHTS)
    middle = len(content) // 2
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    hub.files |= dict(zip(names, (content[:middle], content[middle:]), strict=True))
    index = {"weight_map": {"a": names[0], "b": names[1], "c": names[0]}}
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()


def assert_has(hub: Hub, folder: Path, names: set[str]) -> None:
    assert names_in(folder) == names
    for name in names:
        assert (folder / name).read_bytes() == hub.files[name], name


def test_only_the_files_that_are_needed_are_fetched_each_once(hub: Hub, cache: Path) -> None:
    run = run_fetch(hub, cache)
    assert run.returncode == 0, run.stderr
    assert f"READY hub {MODEL}@{FIRST} " in run.stdout
    assert_has(hub, snapshot_of(cache, FIRST), FACTS | {WEIGHTS})
    assert sorted(each.name for each in hub.served) == sorted(FACTS | {WEIGHTS})


def test_a_router_fetches_no_weights(hub: Hub, cache: Path) -> None:
    assert run_fetch(hub, cache, "--files", "facts").returncode == 0
    assert_has(hub, snapshot_of(cache, FIRST), FACTS)
    assert run_fetch(hub, cache).returncode == 0
    assert_has(hub, snapshot_of(cache, FIRST), FACTS | {WEIGHTS})
    assert len(hub.served) == len(FACTS) + 1


def test_of_sharded_weights_the_files_of_the_index_are_fetched(hub: Hub, cache: Path) -> None:
    shard(hub)
    assert run_fetch(hub, cache).returncode == 0
    shards = {name for name in hub.files if name.startswith("model")}
    assert_has(hub, snapshot_of(cache, FIRST), FACTS | shards)


def test_an_index_that_leads_elsewhere_is_refused(hub: Hub, cache: Path) -> None:
    shard(hub)
    for name in ("../../x.safetensors", "/etc/passwd", "gone.safetensors"):
        hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": name}}).encode()
        hub.revisions["main"] = commit_of(name)
        run = run_fetch(hub, cache)
        assert run.returncode == 4
        assert "model.safetensors.index.json" in run.stderr


def test_what_is_complete_is_asked_for_once_more_and_not_fetched(hub: Hub, cache: Path) -> None:
    run_fetch(hub, cache)
    hub.asked.clear()
    hub.served.clear()
    assert run_fetch(hub, cache).returncode == 0
    assert hub.asked == [("GET", f"/api/models/{MODEL}/revision/main")]
    hub.asked.clear()
    assert run_fetch(hub, cache, model=f"{MODEL}@{FIRST}").returncode == 0
    assert hub.asked == []


def test_a_revision_that_moves_is_fetched_beside_the_old_one(hub: Hub, cache: Path) -> None:
    run_fetch(hub, cache)
    hub.revisions["main"] = SECOND
    hub.files["generation_config.json"] += b"\n"
    hub.served.clear()
    run = run_fetch(hub, cache)
    assert f"READY hub {MODEL}@{SECOND} " in run.stdout
    assert_has(hub, snapshot_of(cache, SECOND), FACTS | {WEIGHTS})
    assert [each.name for each in hub.served] == ["generation_config.json"]
    assert names_in(snapshot_of(cache, FIRST)) == FACTS | {WEIGHTS}


def test_a_tag_is_a_revision(hub: Hub, cache: Path) -> None:
    hub.revisions["v1.0"] = SECOND
    run = run_fetch(hub, cache, model=f"{MODEL}@v1.0")
    assert f"READY hub {MODEL}@{SECOND} " in run.stdout


def test_the_cache_is_in_the_form_of_other_tools(hub: Hub, cache: Path) -> None:
    run_fetch(hub, cache)
    (repository,) = scan_cache_dir(cache / "hub").repos
    assert repository.repo_id == MODEL
    (revision,) = repository.revisions
    assert (revision.commit_hash, set(revision.refs)) == (FIRST, {"main"})
    assert {file.file_name for file in revision.files} == FACTS | {WEIGHTS}


def test_what_another_tool_has_fetched_is_used(hub: Hub, cache: Path) -> None:
    download = f"from huggingface_hub import snapshot_download; snapshot_download({MODEL!r})"
    subprocess.run(
        [*fetch_command("")[:1], "-c", download], env=environment_of(hub.url, cache), check=True, cwd=ROOT
    )
    hub.served.clear()
    assert run_fetch(hub, cache).returncode == 0
    assert hub.served == []


def test_hf_hub_cache_names_the_folder_itself(hub: Hub, cache: Path, tmp_path: Path) -> None:
    run = run_fetch(hub, cache, HF_HUB_CACHE=str(tmp_path / "elsewhere"))
    assert run.returncode == 0
    assert f"{tmp_path}/elsewhere/models--demo--tiny/snapshots/{FIRST}" in run.stderr
    assert not cache.exists() or not (cache / "hub").exists()


def test_a_connection_that_breaks_goes_on_where_it_stopped(hub: Hub, cache: Path) -> None:
    hub.cut_after[WEIGHTS] = [1_000_000, 2_000_000]
    run = run_fetch(hub, cache)
    assert run.returncode == 0, run.stderr
    assert_has(hub, snapshot_of(cache, FIRST), FACTS | {WEIGHTS})
    assert len(hub.downloads(WEIGHTS)) == 3
    assert hub.sent(WEIGHTS) == len(hub.files[WEIGHTS])


def test_a_download_whose_process_is_killed_goes_on_where_it_stopped(hub: Hub, cache: Path) -> None:
    hub.bytes_per_s = 2e6
    program = subprocess.Popen(
        fetch_command(MODEL),
        env=environment_of(hub.url, cache),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    incomplete = blobs_of(cache) / f"{sha256(hub.files[WEIGHTS])}.incomplete"
    give_up = time.monotonic() + 60
    while not (incomplete.exists() and incomplete.stat().st_size > 1_000_000):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    program.send_signal(signal.SIGKILL)
    program.wait()
    assert WEIGHTS not in names_in(snapshot_of(cache, FIRST))
    hub.bytes_per_s = None
    there = incomplete.stat().st_size
    run = run_fetch(hub, cache)
    assert run.returncode == 0, run.stderr
    assert hub.downloads(WEIGHTS)[-1].start == there
    assert hub.downloads(WEIGHTS)[-1].num_bytes == len(hub.files[WEIGHTS]) - there
    assert_has(hub, snapshot_of(cache, FIRST), FACTS | {WEIGHTS})
    assert not list(blobs_of(cache).glob("*.incomplete"))


def test_a_server_without_ranges_sends_the_whole_file_again(hub: Hub, cache: Path) -> None:
    hub.ignores_ranges = True
    hub.cut_after[WEIGHTS] = [1_000_000]
    assert run_fetch(hub, cache).returncode == 0
    assert_has(hub, snapshot_of(cache, FIRST), FACTS | {WEIGHTS})


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_wrong_content_is_refused_and_nothing_of_it_is_kept(hub: Hub, cache: Path, name: str) -> None:
    hub.wrong.add(name)
    run = run_fetch(hub, cache)
    assert run.returncode == 4
    last = run.stderr.splitlines()[-1]
    assert last.startswith(f"model {MODEL}@main: what {hub.url} sent as {name} has the hash ")
    assert "Traceback" not in run.stderr
    etag = sha256(hub.files[name]) if name == WEIGHTS else git_sha1(hub.files[name])
    assert not list(blobs_of(cache).glob(f"{etag}*"))
    folder = snapshot_of(cache, FIRST)
    assert not folder.exists() or name not in names_in(folder)
    hub.wrong.clear()
    assert run_fetch(hub, cache).returncode == 0
    assert_has(hub, snapshot_of(cache, FIRST), FACTS | {WEIGHTS})


@pytest.mark.parametrize("size", [1000, 10**7])
def test_a_wrong_part_of_an_earlier_download_is_fetched_again(hub: Hub, cache: Path, size: int) -> None:
    blobs_of(cache).mkdir(parents=True)
    (blobs_of(cache) / f"{sha256(hub.files[WEIGHTS])}.incomplete").write_bytes(b"x" * size)
    run = run_fetch(hub, cache)
    assert run.returncode == 0, run.stderr
    assert_has(hub, snapshot_of(cache, FIRST), FACTS | {WEIGHTS})


def test_a_file_that_something_has_truncated_is_fetched_again(hub: Hub, cache: Path) -> None:
    run_fetch(hub, cache)
    blob = blobs_of(cache) / sha256(hub.files[WEIGHTS])
    blob.write_bytes(blob.read_bytes()[:-1])
    assert run_fetch(hub, cache).returncode == 0
    assert_has(hub, snapshot_of(cache, FIRST), FACTS | {WEIGHTS})


def test_several_processes_that_start_at_once_fetch_each_file_once(hub: Hub, cache: Path) -> None:
    hub.bytes_per_s = 5e6
    programs = [
        subprocess.Popen(
            fetch_command(MODEL),
            env=environment_of(hub.url, cache),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for program in programs:
        out, error = program.communicate(timeout=120)
        assert program.returncode == 0, error
        assert f"READY hub {MODEL}@{FIRST} " in out
    assert sorted(each.name for each in hub.served) == sorted(FACTS | {WEIGHTS})
    assert_has(hub, snapshot_of(cache, FIRST), FACTS | {WEIGHTS})


def test_progress_is_told_every_second_with_rate_and_rest(hub: Hub, cache: Path) -> None:
    hub.bytes_per_s = 2e6
    run = run_fetch(hub, cache)
    lines = [line for line in run.stdout.splitlines() if " phase=downloading at " in line]
    assert lines
    assert len(run.stdout.splitlines()) < 15, run.stdout
    total = len(hub.files[WEIGHTS])
    assert all(f" total={total} phase=downloading at " in line for line in lines)
    assert all(line.endswith(" s left") and " MB/s, " in line for line in lines)
