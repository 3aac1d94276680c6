"""Clients and tools that others made, unchanged, against a fleet's HTTP door.

`make test-clients` installs each into an environment of its own below `.venv-clients`, and runs these.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from baton import AsyncClient, ChatMessage, Sampling, Stop
from baton.fleet import Fleet
from tests.clients.programs import ENVIRONMENTS, output_of
from tests.fleet.driving import assert_all_is_freed
from tests.fleets import DEMO_MODEL, NewFleet
from tools.house.source_tree import ROOT

pytestmark = [
    pytest.mark.clients,
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

SCRIPTS = Path(__file__).parent / "python"
HELLO = "How do I read a file?"
REQUESTS = 24
PROMPT_TOKENS, OUTPUT_TOKENS = 100, 16


@dataclass(frozen=True)
class Served:
    fleet: Fleet
    sdk: AsyncClient
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return self.fleet.gateway_urls[0]

    async def run(self, tool: str, program: str, *arguments: object, cwd: Path = ROOT) -> str:
        """Run a program of a tool's environment to its end; return its output.

        Afterwards the fleet has to be as empty as before.
        """
        path = ENVIRONMENTS / tool / "bin" / program
        output = await output_of(path, *arguments, cwd=cwd, environment=self.environment)
        await assert_all_is_freed(self.fleet, self.sdk)
        return output


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(new_fleet: NewFleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    run_dir = tmp_path_factory.mktemp("foreign")
    in_float32 = {"prefill": ("--dtype", "float32"), "decode": ("--dtype", "float32")}
    async with (
        new_fleet(gateways=1, extra_args=in_float32) as fleet,
        AsyncClient(fleet.router_addresses) as sdk,
    ):
        expected = await sdk.complete(
            [ChatMessage("user", HELLO)], sampling=Sampling(temperature=0), stop=Stop(max_tokens=24)
        )
        ours = {
            "BATON_URL": fleet.gateway_urls[0],
            "BATON_MODEL": str(DEMO_MODEL),
            "BATON_EXPECTED": expected.text,
            "HF_HOME": str(run_dir / "huggingface"),
        }
        yield Served(fleet, sdk, {**os.environ, **ours})


@pytest.mark.parametrize("tool", ["instructor", "langchain", "litellm", "llama_index"])
async def test_libraries_get_what_the_fleet_gives_over_grpc(served: Served, tool: str) -> None:
    await served.run(tool, "python", SCRIPTS / f"{tool}_client.py")


async def test_lm_eval_measures_what_it_measures_by_transformers(served: Served) -> None:
    output = await served.run(
        "lm_eval", "python", SCRIPTS / "lm_eval_client.py", ".", cwd=SCRIPTS / "lm_eval_tasks"
    )
    assert output.count("worst difference") == len(("questions", "pages", "endings", "questions as texts"))


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_aiperf_has_no_error(served: Served, kind: str, tmp_path: Path) -> None:
    await served.run(
        "aiperf",
        "aiperf",
        *("profile", "--model", "demo_model", "--url", served.url, "--endpoint-type", kind, "--streaming"),
        *("--tokenizer", DEMO_MODEL, "--request-count", REQUESTS, "--concurrency", 4, "--ui", "none"),
        *("--prompt-input-tokens-mean", PROMPT_TOKENS, "--prompt-output-tokens-mean", OUTPUT_TOKENS),
        *("--output-artifact-dir", tmp_path),
    )
    found = _read(tmp_path / "profile_export_aiperf.json")
    assert found["request_count"]["avg"] == REQUESTS
    assert not found.get("error_summary"), found["error_summary"]
    assert found["usage_completion_tokens"]["max"] <= OUTPUT_TOKENS  # the fleet's count
    assert found["time_to_first_token"]["min"] > 0


async def test_guidellm_has_no_error(served: Served, tmp_path: Path) -> None:
    sizes = f"prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"
    await served.run(
        "guidellm",
        "guidellm",
        *("run", "--backend", f"kind=openai_http,target={served.url}", "--disable-progress"),
        *("--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={DEMO_MODEL}", "--data", f"kind=synthetic_text,{sizes}"),
        *("--output", f"kind=json,path={tmp_path / 'report.json'}"),
    )
    (found,) = _read(tmp_path / "report.json")["benchmarks"]
    totals = found["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (REQUESTS, 0, 0)
    assert found["metrics"]["output_token_count"]["successful"]["mean"] == OUTPUT_TOKENS


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
