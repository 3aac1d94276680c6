"""A model that cannot be fetched is refused in one sentence that says what to do, with exit code 4."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hub import (
    DEMO,
    MODEL,
    ROOT,
    TOKEN,
    Hub,
    blobs_of,
    commit_of,
    environment_of,
    names_in,
    run_fetch,
    sha256,
    snapshot_of,
)
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

FIRST = commit_of("first")


def refused(run: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Check that a run was refused in one sentence with these parts."""
    assert run.returncode == 4, run.stderr
    assert "Traceback" not in run.stderr
    last = run.stderr.splitlines()[-1]
    assert last.startswith("model "), run.stderr
    for part in parts:
        assert part in last


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_model_that_does_not_exist(hub: Hub, cache: Path) -> None:
    refused(
        run_fetch(hub, cache, model="demo/other"),
        "model demo/other@main: ",
        "has no such model, or it is private; nor is there a folder demo/other",
        "HF_TOKEN",
    )
    refused(run_fetch(hub, cache, model="demo/other", HF_TOKEN=TOKEN), "has no such model")


def test_a_path_is_left_to_the_services(hub: Hub, cache: Path) -> None:
    """They may have it mounted where the program that fetches has not."""
    for path in (str(DEMO), "/mounted/elsewhere"):
        run = run_fetch(hub, cache, model=path)
        assert run.returncode == 0, run.stderr
        assert "nothing_to_fetch" in run.stderr
    refused(run_fetch(hub, cache, model="tiny"), "names no model of the hub", "ORG/NAME@REVISION")
    assert hub.asked == []


def test_a_private_model_needs_a_token(hub: Hub, cache: Path) -> None:
    hub.private = True
    refused(run_fetch(hub, cache), "or it is private", "set HF_TOKEN to a token that may read it")
    assert run_fetch(hub, cache, HF_TOKEN=TOKEN).returncode == 0


def test_a_gated_model_needs_access(hub: Hub, cache: Path) -> None:
    hub.gated = True
    refused(
        run_fetch(hub, cache),
        "its owners grant access one by one, and no token is set",
        f"ask for access at {hub.url}/{MODEL}",
    )
    refused(run_fetch(hub, cache, HF_TOKEN="hf_of_another_account"), "the account of the token has no access")
    assert run_fetch(hub, cache, HF_TOKEN=TOKEN).returncode == 0


def test_the_token_goes_to_the_hub_alone(hub: Hub, cache: Path) -> None:
    hub.gated = True
    assert run_fetch(hub, cache, HF_TOKEN=TOKEN).returncode == 0
    sent = {each.name: each.authorization for each in hub.served}
    assert sent["config.json"] == f"Bearer {TOKEN}"
    assert sent["model.safetensors"] is None  # it comes from another host


def test_a_token_that_is_not_valid(hub: Hub, cache: Path) -> None:
    refused(run_fetch(hub, cache, HF_TOKEN="hf_bad"), "does not accept the token", "HF_TOKEN")


def test_a_revision_that_does_not_exist(hub: Hub, cache: Path) -> None:
    refused(
        run_fetch(hub, cache, model=f"{MODEL}@v9"),
        "it has no revision 'v9'; accepted: a branch, tag or commit of it",
    )


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_model_without_a_file_that_all_need(hub: Hub, cache: Path, name: str) -> None:
    del hub.files[name]
    refused(run_fetch(hub, cache), f"it has no {name}")
    assert hub.served == []


def test_a_model_without_safetensors_is_refused_at_once(hub: Hub, cache: Path) -> None:
    del hub.files["model.safetensors"]
    refused(run_fetch(hub, cache), "it has no model.safetensors", "pytorch_model.bin", "safetensors")
    assert hub.served == []
    assert run_fetch(hub, cache, "--files", "facts").returncode == 0


def test_a_file_that_the_model_does_not_have_is_refused(hub: Hub, cache: Path) -> None:
    hub.files["tiny-Q8_0.gguf"] = b"GGUF"
    refused(
        run_fetch(hub, cache, model=f"{MODEL}:tiny-Q4_0.gguf"),
        "it has no tiny-Q4_0.gguf (it has tiny-Q8_0.gguf)",
    )
    assert hub.served == []


def test_a_model_of_gguf_files_alone_is_refused_with_their_names(hub: Hub, cache: Path) -> None:
    hub.files = {"tiny-Q8_0.gguf": b"GGUF"}
    refused(run_fetch(hub, cache), "it has no config.json (it has tiny-Q8_0.gguf)", "ORG/NAME:FILE.gguf")


def test_offline_the_cache_is_enough(hub: Hub, cache: Path) -> None:
    refused(run_fetch(hub, cache, HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE is set", "config.json is missing")
    run_fetch(hub, cache, "--files", "facts")
    refused(
        run_fetch(hub, cache, HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE is set", "model.safetensors is missing"
    )
    run_fetch(hub, cache)
    hub.asked.clear()
    run = run_fetch(hub, cache, HF_HUB_OFFLINE="1")
    assert run.returncode == 0, run.stderr
    assert f"READY hub {MODEL}@{FIRST} " in run.stdout
    assert hub.asked == []
    refused(run_fetch(hub, cache, model=f"{MODEL}@v9", HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE is set")


def test_offline_a_cache_without_a_list_needs_what_all_have(hub: Hub, cache: Path) -> None:
    run_fetch(hub, cache)
    (listing,) = (cache / "hub").glob("*/trees/*.json")
    listing.unlink()
    assert run_fetch(hub, cache, HF_HUB_OFFLINE="1").returncode == 0
    (snapshot_of(cache, FIRST) / "model.safetensors").unlink()
    refused(run_fetch(hub, cache, HF_HUB_OFFLINE="1"), "model.safetensors is missing")


def test_a_hub_that_cannot_be_reached(hub: Hub, cache: Path) -> None:
    address = f"http://127.0.0.1:{closed_port()}"
    refused(
        run_fetch(hub, cache, HF_ENDPOINT=address),
        f"there is no folder {MODEL}, the hub at {address} cannot be reached (",
        "check the network, HTTPS_PROXY and HF_ENDPOINT",
    )
    run_fetch(hub, cache)
    run = run_fetch(hub, cache, HF_ENDPOINT=address)
    assert run.returncode == 0, run.stderr
    assert "model_from_cache" in run.stderr


@pytest.mark.parametrize(
    ("status", "part"),
    [(500, "status 500"), (429, "takes no more requests for now"), (403, "forbids access"), (418, "418")],
)
def test_a_hub_that_answers_with_an_error(hub: Hub, cache: Path, status: int, part: str) -> None:
    hub.status = status
    refused(run_fetch(hub, cache), part)


def test_a_download_that_breaks_off_for_good_says_that_it_goes_on(hub: Hub, cache: Path) -> None:
    hub.cut_after["model.safetensors"] = [0] * 20
    refused(run_fetch(hub, cache), "broke off", "start again: it goes on where it stopped")


def test_a_disk_that_is_full(hub: Hub, cache: Path) -> None:
    blobs_of(cache).mkdir(parents=True)
    incomplete = blobs_of(cache) / f"{sha256(hub.files['model.safetensors'])}.incomplete"
    incomplete.symlink_to("/dev/full")
    refused(run_fetch(hub, cache), "no space is left in", "No space left on device", "HF_HOME")
    assert "model.safetensors" not in names_in(snapshot_of(cache, FIRST))
    incomplete.unlink()
    assert run_fetch(hub, cache).returncode == 0


def test_a_disk_that_would_be_full_is_refused_before_the_download(hub: Hub, cache: Path) -> None:
    program = (
        "import shutil, sys, collections\n"
        "Usage = collections.namedtuple('Usage', 'total used free')\n"
        "shutil.disk_usage = lambda path: Usage(10, 10, 5_000_000)\n"
        "from runtime.hub.program import flags, run\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", f"{program}sys.exit(run(flags().parse_args([{MODEL!r}])))"],
        env=environment_of(hub.url, cache),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    refused(run, "7 MB are to be fetched, and 5 MB are free in ", "HF_HOME")
    assert not hub.downloads("model.safetensors")


def test_a_cache_that_cannot_be_written(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    refused(run_fetch(hub, tmp_path / "file"), f"{tmp_path}/file", "Not a directory")
