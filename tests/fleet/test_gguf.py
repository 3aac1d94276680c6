"""A fleet of a GGUF file, by its path and by its name on the hub: callers get the model's own tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from baton import AsyncClient, Sampling, Stop
from baton.fleet import Fleet, FleetSpec, ManagedProcess
from baton.fleet.processes.errors import ProcessFailed
from tests.forked import Zygote
from tests.gguf_files import DEQUANTISED, Kind, write
from tests.hub import DEMO, MODEL, Hub, commit_of, environment_of, serving
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

PROMPT, NUM_TOKENS = "The list is", 12


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the demo model as a file of Q8_0, with one layer's rows of 688 inputs in F16."""
    return write(DEMO, tmp_path_factory.mktemp("gguf"), Kind.Q8_0)


@pytest.fixture
def new_fleet(tmp_path: Path, zygote: Zygote) -> Callable[..., Fleet]:
    """Return a function that makes a fleet. Which hub a process uses, it reads as it imports the library."""

    def make(model: Path, url: str = "", **settings: Any) -> Fleet:
        environment = environment_of(url, tmp_path / "hf", XDG_CACHE_HOME=str(tmp_path / "cache"))
        own: dict[str, Any] = {"model": model, "run_dir": tmp_path / "run", "environment": environment}
        make_process = ManagedProcess if url else zygote.process
        return Fleet(FleetSpec(**(own | settings)), make_process=make_process)

    return make


def wanted(file: Path) -> str:
    """Return what transformers makes, greedily, of the numbers that the file stands for."""
    library: Any = transformers
    folder = file.parent / DEQUANTISED
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    model = library.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    asked = tokenizer(PROMPT, return_tensors="pt")
    made = model.generate(**asked, max_new_tokens=NUM_TOKENS, do_sample=False)[0]
    text: str = tokenizer.decode(made[asked["input_ids"].shape[1] :], skip_special_tokens=True)
    return text


async def completion(fleet: Fleet, model: str) -> str:
    async with AsyncClient(fleet.router_addresses, model=model) as client:
        whole = await client.complete(
            PROMPT, stop=Stop(max_tokens=NUM_TOKENS), sampling=Sampling(temperature=0)
        )
        return whole.choices[0].text


async def test_a_file_is_served_under_its_name(file: Path, new_fleet: Callable[..., Fleet]) -> None:
    async with new_fleet(file, gateways=1, prefill=1) as fleet:
        assert await completion(fleet, "tiny") == wanted(file)
        async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
            models = await http.get(f"{fleet.gateway_urls[0]}/v1/models")
            assert [model["id"] for model in models.json()["data"]] == ["tiny"]
            said = [{"role": "user", "content": "What is a list?"}]
            body = {"model": "tiny", "messages": said, "max_tokens": 4}
            chat = await http.post(f"{fleet.gateway_urls[0]}/v1/chat/completions", json=body)
            assert chat.status_code == 200, chat.text


@pytest.fixture
def hub(file: Path) -> Iterator[Hub]:
    with serving(
        Hub(files={"tiny-Q8_0.gguf": file.read_bytes(), "README.md": b"A model card.\n"})
    ) as running:
        yield running


@pytest.mark.long
async def test_a_file_of_the_hub_is_served_under_its_name_there(
    hub: Hub, file: Path, new_fleet: Callable[..., Fleet]
) -> None:
    name = f"{MODEL}:tiny-Q8_0.gguf"
    async with new_fleet(Path(name), hub.url, prefill=0) as fleet:
        assert await completion(fleet, name) == wanted(file)
    assert hub.sent("tiny-Q8_0.gguf") == len(hub.files["tiny-Q8_0.gguf"])
    assert hub.downloads("README.md") == []


async def test_timed_workers_take_a_file(file: Path, new_fleet: Callable[..., Fleet]) -> None:
    async with new_fleet(file, timed="demo-cpu", prefill=0) as fleet:
        assert await completion(fleet, "tiny")


async def test_a_broken_file_starts_nothing(
    file: Path, tmp_path: Path, new_fleet: Callable[..., Fleet]
) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(file.read_bytes()[:-1000])
    fleet = new_fleet(short, prefill=0)
    with pytest.raises(ProcessFailed) as failed:
        async with fleet:
            pass
    assert failed.value.exit_code == 4
    assert "short.gguf has the tensor " in failed.value.tail
    assert commit_of("first") not in failed.value.tail
