"""A wrong flag is named with its value and what would be accepted."""

import re
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.transports.transport import TransportMode
from runtime.process.limits import Cores
from worker.startup.flags import parse_config
from worker.threads import resolve_threads


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--listen=nowhere", "--listen is 'nowhere'; accepted: HOST:PORT with a port of 0 to 65535"),
        ("--advertise=h:99999", "--advertise is 'h:99999'; accepted: HOST:PORT with a port of 0 to 65535"),
        ("--block-size=0", "--block-size is 0; accepted: 1 or more"),
        ("--num-blocks=0", "--num-blocks is 0; accepted: 1 or more"),
        ("--kv-memory-mb=0", "--kv-memory-mb is 0; accepted: 1 or more"),
        ("--max-num-seqs=0", "--max-num-seqs is 0; accepted: 1 or more"),
        ("--token-budget=-3", "--token-budget is -3; accepted: 1 or more"),
        ("--threads=-1", "--threads is -1; accepted: 0 to "),
        ("--workers-per-host=0", "--workers-per-host is 0; accepted: 1 or more"),
        ("--metrics-port=70000", "--metrics-port is 70000; accepted: 0 to 65535"),
        ("--drain-s=-1", "--drain-s is -1.0; accepted: 0 or more"),
        ("--worker-id=a b", "--worker-id is 'a b'; accepted: printable characters without space or colon"),
        ("--redis=localhost", "--redis is 'localhost'; accepted: a URL such as redis://127.0.0.1:6379/0"),
        (
            "--prove-model --timed=demo-cpu",
            "--prove-model is set with --timed; accepted: a worker that computes",
        ),
        (
            "--share-prefixes --timed=demo-cpu",
            "--share-prefixes is set with --timed; accepted: a worker that computes",
        ),
        (
            "--speculate=lookup --timed=demo-cpu",
            "--speculate is lookup with --timed; accepted: none, since nothing is computed",
        ),
        (
            "--draft-model=/small --timed=demo-cpu",
            "--draft-model is '/small' with --timed; accepted: no draft model, since nothing is computed",
        ),
        (
            "--kv-disk=/kv --timed=demo-cpu",
            "--kv-disk is '/kv' with --timed; accepted: no folder, since nothing is computed",
        ),
        (
            "--kv-host-memory-mb=5 --timed=demo-cpu",
            "--kv-host-memory-mb is 5 with --timed; accepted: 0, since nothing is computed",
        ),
        ("--kv-host-memory-mb=-1", "--kv-host-memory-mb is -1; accepted: 0 or more"),
        ("--kv-disk-mb=5", "--kv-disk-mb is 5 without --kv-disk; accepted: both, or neither"),
        ("--kv-disk=/kv --kv-disk-mb=0", "--kv-disk-mb is 0; accepted: 1 or more"),
        (
            "--quantisation=int8 --timed=demo-cpu",
            "--quantisation is int8 with --timed; accepted: none, since nothing is computed",
        ),
        (
            "--quantisation=int8 --dtype=float64",
            "--quantisation is int8 with --dtype float64; accepted: auto, float32 or bfloat16",
        ),
        ("--lora=red", "--lora is 'red'; accepted: NAME=PATH"),
        ("--lora=red=", "--lora is 'red='; accepted: NAME=PATH"),
        ("--lora=a:b=p", "--lora has the name 'a:b'; accepted: 1 to 64 letters, digits, dots, underscores"),
        ("--lora=a=p --lora=a=q", "--lora has the name 'a' twice; accepted: each name once"),
        ("--lora=a=p --timed=demo-cpu", "--lora is set with --timed; accepted: a worker that computes"),
        ("--lora=a=p --deterministic", "--lora is set with --deterministic; accepted: one of the two"),
        ("--lora-dir=/nowhere", "--lora-dir is '/nowhere'; accepted: a folder that exists"),
        ("--lora-dir=/tmp --lora=a=p", "--lora-dir is '/tmp' with --lora; accepted: one of the two"),
        ("--lora-dir=/tmp --deterministic", "--lora-dir is '/tmp' with --deterministic; accepted: one of"),
        ("--lora-dir=/tmp --timed=demo-cpu", "--lora-dir is set with --timed; accepted: a worker that"),
        ("--lora-dir=/tmp --lora-memory-mb=0", "--lora-memory-mb is 0; accepted: 1 or more"),
        ("--lora-memory-mb=9", "--lora-memory-mb is 9 without --lora-dir; accepted: both, or neither"),
        ("--lora-rank=9", "--lora-rank is 9 without --lora-dir; accepted: both, or neither"),
        ("--shm-dir=/nowhere", "--shm-dir is '/nowhere'; accepted: a directory that exists"),
    ],
)
def test_a_wrong_value_is_refused_by_name(flag: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_config(["--model=m", f"--shm-dir={tmp_path}", *re.split(" (?=--)", flag)], "decode", 1)


def test_cuda_ipc_cannot_be_asked_for_without_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="--transport is cuda_ipc without a GPU; accepted: auto, shm, nixl or"
    ):
        parse_config(
            ["--model=m", f"--shm-dir={tmp_path}", "--transport=cuda_ipc", "--device=cpu"], "decode", 1
        )


def test_nixl_cannot_be_asked_for_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtransfer.transports.nixl.PACKAGE", "nixl_of_nowhere")
    with pytest.raises(
        ValueError, match="--transport is nixl, which is not installed; accepted: auto, shm or"
    ):
        parse_config(["--model=m", f"--shm-dir={tmp_path}", "--transport=nixl"], "decode", 1)


def test_a_prefill_worker_has_no_use_for_a_draft_model(tmp_path: Path) -> None:
    sentence = "--draft-model is '/small' for a prefill worker; accepted: for decode workers, which draft"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_config(["--model=m", f"--shm-dir={tmp_path}", "--draft-model=/small"], "prefill", 1)


def test_the_socket_directory_is_unused_without_shared_memory() -> None:
    config = parse_config(["--model=m", "--shm-dir=/nowhere", "--transport=grpc"], "decode", 1)
    assert config.transport is TransportMode.GRPC


def test_defaults_suit_a_process_on_its_own(tmp_path: Path) -> None:
    config = parse_config(["--model=m", f"--shm-dir={tmp_path}"], "prefill", 42)
    assert config.worker_id == f"prefill-{socket.gethostname()}-42", "process ids are all 1 in containers"
    assert (config.service.host, config.service.advertise) == ("127.0.0.1", "")
    assert config.threads >= 1
    assert config.num_blocks is None
    assert config.kv_memory_mb is None
    assert config.cuda_graphs
    assert config.transport is TransportMode.AUTO
    assert config.fusion


def test_no_more_threads_compute_than_there_are_cores() -> None:
    cores = Cores(8, 1.5)
    sentence = (
        "--threads is 64; accepted: 0 to 2, the cores this process may use (8 in the affinity mask, of "
        "which a quota allows 1.5)"
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        resolve_threads(64, 2, cores)
    assert [resolve_threads(asked, 2, cores) for asked in (None, 0, 1, 2)] == [1, 2, 1, 2]


@given(st.integers(1, 256), st.integers(1, 64))
def test_workers_of_one_host_divide_the_cores(processors: int, num_workers: int) -> None:
    threads = resolve_threads(None, num_workers, Cores(processors))
    assert threads == max(1, processors // num_workers)


def test_fusion_can_be_turned_off(tmp_path: Path) -> None:
    config = parse_config(["--model=m", f"--shm-dir={tmp_path}", "--no-fusion"], "decode", 1)
    assert not config.fusion


def test_an_unknown_choice_leaves_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse_config(["--model=m", "--dtype=int3"], "decode", 1)
    assert left.value.code == 2
    assert "--dtype" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("0", "--tensor-parallel is 0; accepted: 1 or more"),
        ("9", "--tensor-parallel is 9; accepted: 1 to 8, the cores this process may use (8 in the"),
        ("2 --deterministic", "--tensor-parallel is 2 with --deterministic; accepted: one of the two"),
        ("2 --prove-model", "--tensor-parallel is 2 with --prove-model; accepted: one of the two"),
        ("2 --timed=demo-cpu", "--tensor-parallel is 2 with --timed; accepted: 1, since nothing is computed"),
        ("2 --threads=3", "--threads is 3 with --tensor-parallel 2; accepted: a multiple of 2"),
    ],
)
def test_a_group_that_cannot_be_is_refused(
    flags: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.startup.flags.read_cores", lambda: Cores(8))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_config(["--model=m", *f"--tensor-parallel={flags}".split()], "decode", 1)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("0", "--pipeline-parallel is 0; accepted: 1 or more"),
        ("9", "--pipeline-parallel is 9; accepted: 1 to 8, the cores this process may use (8 in the"),
        ("2 --tensor-parallel=9", "--tensor-parallel is 9; accepted: 1 to 8, the cores this process may use"),
        (
            "2 --tensor-parallel=3 --device=cuda",
            "--tensor-parallel is 3 and --pipeline-parallel is 2 with --device cuda; accepted: a worker on",
        ),
        (
            "2 --tensor-parallel=2 --threads=6",
            "--threads is 6 with --tensor-parallel 2 --pipeline-parallel 2; accepted: a multiple of 4",
        ),
        ("3 --tensor-parallel=4 --threads=13", "--threads is 13; accepted: 0 to 12, one for each process"),
        ("2 --device=cuda", "--pipeline-parallel is 2 with --device cuda; accepted: a worker on a CPU"),
        ("2 --deterministic", "--pipeline-parallel is 2 with --deterministic; accepted: one of the two"),
        ("2 --prove-model", "--pipeline-parallel is 2 with --prove-model; accepted: one of the two"),
        (
            "2 --timed=demo-cpu",
            "--pipeline-parallel is 2 with --timed; accepted: 1, since nothing is computed",
        ),
        ("2 --threads=3", "--threads is 3 with --pipeline-parallel 2; accepted: a multiple of 2"),
    ],
)
def test_a_pipeline_that_cannot_be_is_refused(
    flags: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.startup.flags.read_cores", lambda: Cores(8))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_config(["--model=m", *f"--pipeline-parallel={flags}".split()], "decode", 1)


def test_the_processes_of_a_worker_share_its_cores() -> None:
    """A worker gets its share of the cores, but at least one for each process, and as many for each."""
    cores = Cores(8)
    assert [resolve_threads(None, 2, cores, size) for size in (1, 2, 3, 4, 8)] == [4, 4, 3, 4, 8]
    assert [resolve_threads(0, 2, cores, size) for size in (1, 2, 3)] == [8, 8, 6]
    assert resolve_threads(6, 2, cores, 3) == 6
    assert [resolve_threads(None, 2, cores, 2, size) for size in (1, 2, 3, 8)] == [4, 4, 6, 16]
    assert [resolve_threads(asked, 2, Cores(2), 2, 2) for asked in (0, 4)] == [4, 4]
