"""`python -m router` as its own process: what it says, and how it leaves."""

from __future__ import annotations

import asyncio
import datetime as dt
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no annotations

from baton.security.certificates import make_certificates
from baton.v1 import inference_pb2, inference_pb2_grpc
from tests.fleets import DEMO_MODEL
from tests.patience import PATIENCE_S
from tests.tls_proxy import tls_proxy

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


FREEZES = """
import gc, sys
import router.__main__ as router

print(len(gc.get_objects()), flush=True)
print_ready = router._print_ready
router._print_ready = lambda *words: (print(gc.get_freeze_count(), flush=True), print_ready(*words))
sys.exit(router.main())
"""


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "router", "--listen", "127.0.0.1:0", *flags]


def leaves(*flags: str) -> tuple[int, str]:
    run = subprocess.run(
        command(*flags), cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return run.returncode, run.stderr


@pytest.fixture
def router(redis_url: str, model_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A running router and its ready line."""
    process = subprocess.Popen(
        command(
            "--redis", redis_url, "--model", str(model_path), "--router-id", "r1", "--log-format", "json"
        ),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    words = process.stdout.readline().split()
    assert words[:3] == ["READY", "router", "r1"]
    yield process, dict(word.split("=", 1) for word in words[3:])
    process.kill()
    process.wait()
    process.stdout.close()


def test_serves_health_models_and_metrics_and_leaves_cleanly(
    router: tuple[subprocess.Popen[str], dict[str, str]],
) -> None:
    process, ready = router
    with grpc.insecure_channel(ready["address"]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        status = {
            name: health.Check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE_S).status
            for name in ("", "baton.v1.InferenceService", "baton.operators.v1.FleetService")
        }
        answer = health_pb2.HealthCheckResponse
        assert list(status.values()) == [answer.NOT_SERVING, answer.NOT_SERVING, answer.SERVING], "no worker"
        models = inference_pb2_grpc.InferenceServiceStub(channel).ListModels(
            inference_pb2.ListModelsRequest(), timeout=PATIENCE_S
        )
        assert [model.name for model in models.models] == ["model"]
    with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=PATIENCE_S) as page:
        text = page.read().decode()
    assert "baton_ttft_seconds" in text
    assert "itl_seconds_bucket" in text
    assert 'baton_event_loop_standstill_seconds{since="start"}' in text
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) == 0


def test_the_collector_does_not_look_through_what_start_up_made(redis_url: str, model_path: Path) -> None:
    flags = ["--listen", "127.0.0.1:0", "--redis", redis_url, "--model", str(model_path)]
    with subprocess.Popen(
        [sys.executable, "-c", FREEZES, *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        num_imported, num_frozen = int(process.stdout.readline()), int(process.stdout.readline())
        process.terminate()
    assert num_frozen >= num_imported > 10_000


async def test_it_serves_with_a_redis_that_asks_for_certificates(
    redis_url: str, model_path: Path, tmp_path: Path
) -> None:
    made = make_certificates(tmp_path, (), 1, dt.datetime.now(dt.UTC))
    files = {"ca": made.ca, "cert": made.cert("router"), "key": made.key("router")}
    flags = [f"--tls-{name}={path}" for name, path in files.items()]
    async with tls_proxy(made, "redis", redis_url.removeprefix("unix://")) as port:
        flags += [f"--redis=rediss://localhost:{port}/0", f"--model={model_path}", "--router-id=r1"]
        process = await asyncio.create_subprocess_exec(
            *command(*flags), cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        assert process.stdout is not None
        assert (await process.stdout.readline()).startswith(b"READY router r1 ")
        process.terminate()
        await process.communicate()
        assert process.returncode == 0


def test_wrong_setting_leaves_with_code_2_and_names_the_flag(model_path: Path) -> None:
    code, said = leaves("--model", str(model_path), "--queue-capacity", "0")
    assert (code, "--queue-capacity is 0" in said) == (2, True)
    assert "Traceback" not in said


def test_unreachable_redis_leaves_with_code_3_and_a_sentence(model_path: Path) -> None:
    code, said = leaves("--model", str(model_path), "--redis", "redis://127.0.0.1:1/0")
    assert (code, "redis://127.0.0.1:1/0" in said) == (3, True)
    assert "Traceback" not in said


@pytest.mark.parametrize("flag", ["--listen", "--metrics-port"])
def test_a_taken_address_leaves_with_code_2_and_names_it(flag: str, redis_url: str, model_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        given = f"127.0.0.1:{port}" if flag == "--listen" else f"{port}"
        code, said = leaves("--redis", redis_url, "--model", str(model_path), flag, given)
    assert code == 2
    last = said.splitlines()[-1]  # gRPC has its own word before
    assert last.startswith(f"{flag} is 127.0.0.1:{port}, which cannot be bound: ")
    assert "; accepted: " in last
    assert "Traceback" not in said


def test_missing_model_leaves_with_code_4_and_names_it(redis_url: str, tmp_path: Path) -> None:
    code, said = leaves("--redis", redis_url, "--model", str(tmp_path / "nowhere"))
    assert (code, "nowhere" in said) == (4, True)


def test_truncated_model_leaves_with_code_4_and_names_the_file(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 1')
    code, said = leaves("--redis", redis_url, "--model", str(tmp_path))
    assert (code, "config.json" in said) == (4, True)


@pytest.mark.parametrize(
    ("file", "reason"),
    [("tokenizer.json", "is no tokenizer ("), ("chat_template.jinja", "has a chat template that cannot be")],
)
def test_a_broken_file_of_a_model_leaves_with_code_4_and_one_sentence(
    file: str, reason: str, redis_url: str, tmp_path: Path
) -> None:
    model = shutil.copytree(DEMO_MODEL, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    (model / file).write_text("{% for")
    code, said = leaves("--redis", redis_url, "--model", str(model))
    assert code == 4
    assert said.splitlines()[-1].startswith(f"{model / file} {reason}")
    assert "Traceback" not in said


def test_only_the_process_that_compiles_grammars_loads_their_compiler() -> None:
    script = "import sys, router.__main__; print('llguidance' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]
