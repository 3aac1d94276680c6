"""Whatever is wrong with a request or a process is said at once, by name, and harms no neighbour."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Protocol

import pytest

from baton import AsyncClient, BatonError, ChatMessage, Finished, Sampling, Slo, Stop, Tokens
from baton.errors import Conflict, DeadlineExceeded, InvalidRequest, NotFound
from baton.fleet import Fleet, FleetSpec
from baton.fleet.processes.errors import ProcessFailed
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import assert_all_is_freed
from tests.model_zoo import MAX_CONTEXT, VOCAB_SIZE, build
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

ARGS = ("--num-blocks", "64")
PROMPT = [5, 6, 7]

WRONG: list[tuple[str, dict[str, object], str]] = [
    ("empty prompt", {"prompt": []}, "tokens.token_ids"),
    ("empty text", {"prompt": ""}, "text"),
    ("over-long prompt", {"prompt": [5] * (MAX_CONTEXT + 1)}, "tokens.token_ids"),
    ("token id out of range", {"prompt": [5, VOCAB_SIZE]}, "tokens.token_ids"),
    ("negative temperature", {"sampling": Sampling(temperature=-0.1)}, "sampling.temperature"),
    ("top_p of nothing", {"sampling": Sampling(top_p=0.0)}, "sampling.top_p"),
    ("no choices", {"sampling": Sampling(n=0)}, "sampling.n"),
    ("too many alternatives", {"sampling": Sampling(logprobs=21)}, "sampling.logprobs"),
    ("bias of an unknown token", {"sampling": Sampling(logit_bias={VOCAB_SIZE: 1.0})}, "sampling.logit_bias"),
    ("an empty stop string", {"stop": Stop(strings=[""])}, "stop.stop_strings"),
    ("long stop strings", {"stop": Stop(strings=["a", *["b" * 240_000] * 15])}, "stop.stop_strings[1]"),
    ("many stop tokens", {"stop": Stop(token_ids=[5] * 1025)}, "stop.stop_token_ids"),
    (
        "many biases",
        {"sampling": Sampling(logit_bias=dict.fromkeys(range(1025), 1.0))},
        "sampling.logit_bias",
    ),
    ("many messages", {"prompt": [ChatMessage("user", "")] * 4097}, "chat.messages"),
    ("min over max", {"stop": Stop(max_tokens=2, min_tokens=3)}, "stop.min_tokens"),
    ("stop token out of range", {"stop": Stop(token_ids=[VOCAB_SIZE])}, "stop.stop_token_ids"),
    ("strange request_id", {"request_id": "new\nline"}, "request_id"),
]


async def test_wrong_requests_are_named_and_harm_nobody(
    tiny_llama: Path, run_dir: Path, make_fleet: MakeFleet
) -> None:
    spec = FleetSpec(model=tiny_llama, run_dir=run_dir, extra_args={"prefill": ARGS, "decode": ARGS})
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        neighbour = asyncio.create_task(
            client.complete(PROMPT, sampling=Sampling(seed=1), stop=Stop(max_tokens=200, ignore_eos=True))
        )
        for what, arguments, field in WRONG:
            with pytest.raises(InvalidRequest) as caught:
                await client.complete(**{"prompt": PROMPT, **arguments})  # type: ignore[arg-type]
            assert field in caught.value.field, what
            assert caught.value.description, what
        with pytest.raises(DeadlineExceeded, match="deadline"):
            await client.complete(PROMPT, slo=Slo(deadline_ms=0))
        async with AsyncClient(fleet.router_addresses, model="another") as other:
            with pytest.raises(NotFound, match="another"):
                await other.complete(PROMPT)
        with pytest.raises(BatonError, match=r"larger|exceed|too large"):
            await client.complete("x" * (5 << 20))
        await client.complete(PROMPT, stop=Stop(max_tokens=2), request_id="taken")
        with pytest.raises(Conflict, match="taken"):
            await client.complete([*PROMPT, 8], stop=Stop(max_tokens=2), request_id="taken")
        assert len((await neighbour).choices[0].token_ids) == 200
        await assert_all_is_freed(fleet, client)


async def test_the_same_request_sent_twice_is_one_request(
    tiny_llama: Path, run_dir: Path, make_fleet: MakeFleet
) -> None:
    spec = FleetSpec(model=tiny_llama, run_dir=run_dir, extra_args={"prefill": ARGS, "decode": ARGS})
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        sampling, stop = Sampling(seed=4), Stop(max_tokens=30, ignore_eos=True)
        first = await client.complete(PROMPT, sampling=sampling, stop=stop, request_id="once")
        again: list[int] = []
        async for event in client.generate(PROMPT, sampling=sampling, stop=stop, request_id="once"):
            if isinstance(event, Tokens):
                again += event.token_ids
            elif isinstance(event, Finished):
                assert event.usage.output_tokens == 30
        assert tuple(again) == first.choices[0].token_ids


class Failure(Protocol):
    async def __call__(self, model: Path, **extra: tuple[str, ...]) -> ProcessFailed: ...


@pytest.fixture
def failed_start(make_fleet: MakeFleet, run_dir: Path) -> Failure:
    """Return a function that starts a fleet which cannot start, and returns its failure."""

    async def start(model: Path, **extra: tuple[str, ...]) -> ProcessFailed:
        with pytest.raises(ProcessFailed) as caught:
            async with make_fleet(FleetSpec(model=model, run_dir=run_dir, extra_args=extra)):
                pass
        return caught.value

    return start


async def test_a_missing_model_is_named(tmp_path: Path, failed_start: Failure) -> None:
    failure = await failed_start(tmp_path / "nowhere")
    assert failure.exit_code == 4
    assert "nowhere" in failure.tail


async def test_truncated_weights_are_named(tiny_llama: Path, tmp_path: Path, failed_start: Failure) -> None:
    model = shutil.copytree(tiny_llama, tmp_path / "truncated")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    failure = await failed_start(model)
    assert failure.exit_code == 4
    assert "model.safetensors" in failure.tail


@pytest.mark.parametrize("file", ["tokenizer.json", "chat_template.jinja", "generation_config.json"])
async def test_a_broken_file_of_a_model_is_named_in_one_sentence(
    file: str, tiny_llama: Path, tmp_path: Path, failed_start: Failure
) -> None:
    model = shutil.copytree(tiny_llama, tmp_path / "broken")
    (model / file).write_text("{% for")
    failure = await failed_start(model)
    assert failure.exit_code == 4
    assert str(model) in failure.tail
    assert f"{file} " in failure.tail
    assert "Traceback" not in failure.tail


async def test_an_architecture_off_the_list_is_refused(
    tiny_llama: Path, tmp_path: Path, failed_start: Failure
) -> None:
    model = shutil.copytree(tiny_llama, tmp_path / "bloom")
    config = model / "config.json"
    config.write_text(
        config.read_text().replace("LlamaForCausalLM", "BloomForCausalLM").replace('"llama"', '"bloom"')
    )
    failure = await failed_start(model)
    assert failure.exit_code == 4
    assert "bloom" in failure.tail.lower()


async def test_a_worker_with_another_block_size_is_refused(tiny_llama: Path, failed_start: Failure) -> None:
    failure = await failed_start(tiny_llama, prefill=("--block-size", "8"))
    assert failure.exit_code == 5
    assert "block" in failure.tail


async def test_a_worker_with_another_model_is_refused(
    tiny_llama: Path, tmp_path: Path, failed_start: Failure
) -> None:
    other = build("qwen2", tmp_path / "other")
    failure = await failed_start(tiny_llama, decode=("--model", str(other)))
    assert failure.exit_code == 5
    assert "fingerprint" in failure.tail


async def test_no_redis_is_said_within_seconds(tiny_llama: Path, tmp_path: Path, run_dir: Path) -> None:
    spec = FleetSpec(model=tiny_llama, run_dir=run_dir, redis_url=f"unix://{tmp_path}/none.sock")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ProcessFailed) as caught:
            async with Fleet(spec):
                pass
    assert caught.value.exit_code == 3
    assert "Redis" in caught.value.tail
