"""Coding agents and frameworks that others made, unchanged, against a fleet's HTTP door.

The model writes scripts, so each program calls a tool of its own, runs it, and says what the model says then.
They have no network but this machine's, and a home of their own. `make test-clients` installs them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from baton import AsyncClient
from baton.fleet import Fleet
from tests.clients import claude_code
from tests.clients.node import BIN as NODE
from tests.clients.programs import ENVIRONMENTS, output_of
from tests.clients.scripted_model import CONTEXT, Scripts, write_scripted_model
from tests.fleet.driving import assert_all_is_freed
from tests.fleets import NewFleet
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tools.house.source_tree import ROOT

pytestmark = [
    pytest.mark.clients,
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

HERE = Path(__file__).parent
FROM_NPM = HERE / "npm" / "node_modules" / ".bin"
PLAIN = "All is well here, and nothing else is to be said."
RAIN = "In Oslo it rains, they say."
NOBODY = "http://127.0.0.1:9"
"""A proxy that is not there: what a program asks of other machines fails at once."""


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


SCRIPTS: Scripts = {
    "plain": [PLAIN],
    "codex": [
        "I look first.\n" + call("exec_command", cmd="echo $((6 * 7)) > codex.txt; cat codex.txt"),
        "Codex has run its command to the end.",
    ],
    "opencode": [
        "Opencode begins.\n" + call("bash", command="echo $((6 * 8)) > opencode.txt"),
        "Opencode has done all that it had to.",
    ],
    "qwen": [
        "Qwen looks.\n" + call("run_shell_command", command="echo $((6 * 9)) > qwen.txt"),
        "Qwen Code is through with it.",
    ],
    "aider": [
        (
            "Its greeting names aider:\n\ngreeting.txt\n```\n"
            "<<<<<<< SEARCH\nhello\n=======\nhello aider\n>>>>>>> REPLACE\n```\n"
        )
    ],
    "claude": [
        "Claude looks.\n" + call("Bash", command="ls", description="List"),
        "There are two files there.",
    ],
    "title": [json.dumps({"title": "Two files"})],
    "weather": [call("weather", city="Oslo"), RAIN],
    "report": [json.dumps({"city": "Bergen", "degrees": 7})],
    "extract": [call("final_result", city="Bergen", degrees=7), "That was it."],
    "handoff": [call("transfer_to_helper"), "The helper has it now."],
    "steps": [call("final_answer", answer="rain in Hamar")],
    "code": [
        'Thought: I ask for it.\n<code>\nsky = weather(city="Moss")\nprint(sky)\n</code>',
        'Thought: I know it.\n<code>\nfinal_answer(sky + " in Moss")\n</code>',
    ],
}


@dataclass(frozen=True)
class Served:
    fleet: Fleet
    sdk: AsyncClient
    home: Path

    @property
    def url(self) -> str:
        return self.fleet.gateway_urls[0]

    @property
    def work(self) -> Path:
        return self.home / "work"

    def environment(self, **added: str) -> dict[str, str]:
        """Return what a program finds in its environment."""
        found = {
            "PATH": f"{NODE}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "BATON_URL": self.url,
            "BATON_MODEL": "scripted",
            "PLAIN": PLAIN,
            "RAIN": RAIN,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            found |= {name: NOBODY, name.lower(): NOBODY}
        return found | added

    async def run(self, program: Path, *arguments: object, **environment: str) -> str:
        """Run a program to its end; return its output.

        No request of its may be refused, and afterwards the fleet has to be as empty as before.
        """
        num_requests = len(self.requests())
        found = self.environment(**environment)
        output = await output_of(program, *arguments, cwd=self.work, environment=found)
        await assert_all_is_freed(self.fleet, self.sdk)
        asked = self.requests()[num_requests:]
        assert asked, output
        assert all(request["status"] < 400 for request in asked), asked
        return output

    def requests(self) -> list[Mapping[str, Any]]:
        """Return the gateway's lines about requests."""
        log = self.fleet.process("gateway-0").log_path.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == "request"]

    def written(self, name: str) -> str:
        """Return what a program wrote into its folder."""
        return (self.work / name).read_text(encoding="utf-8")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(new_fleet: NewFleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("agents")
    (folder / "home" / "work").mkdir(parents=True)
    sizes = ("--dtype", "float32", "--num-blocks", str(2 * CONTEXT // 16), "--max-num-seqs", "16")
    settings = {
        "model": write_scripted_model(SCRIPTS, folder / "scripted"),
        "served_model_names": (claude_code.MODEL,),
        "extra_args": {"prefill": sizes, "decode": sizes},
    }
    async with (
        new_fleet(gateways=1, **settings) as fleet,
        AsyncClient(fleet.router_addresses) as sdk,
    ):
        yield Served(fleet, sdk, folder / "home")


def configuration(name: str, url: str) -> str:
    """Return a file that docs/agents.md shows, for this fleet."""
    document = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    found = re.search(rf"^```\w+ {re.escape(name)}\n(.*?)^```$", document, flags=re.DOTALL | re.MULTILINE)
    assert found is not None, name
    return found[1].replace("http://127.0.0.1:8000", url).replace("demo_model", "scripted")


def configure(served: Served, name: str) -> None:
    path = served.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(configuration(name, served.url), encoding="utf-8")


async def test_codex_runs_a_command(served: Served) -> None:
    configure(served, ".codex/config.toml")
    arguments = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    output = await served.run(FROM_NPM / "codex", *arguments, "Please do script codex.")
    assert "I look first." in output
    assert "Codex has run its command to the end." in output
    assert served.written("codex.txt") == "42\n"


async def test_opencode_runs_a_command(served: Served) -> None:
    configure(served, ".config/opencode/opencode.json")
    off = {f"OPENCODE_DISABLE_{what}": "1" for what in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD")}
    output = await served.run(FROM_NPM / "opencode", "run", "Please do script opencode.", **off)
    assert "Opencode has done all that it had to." in output
    assert served.written("opencode.txt") == "48\n"


async def test_qwen_code_runs_a_command(served: Served) -> None:
    configure(served, ".qwen/settings.json")
    named = {"OPENAI_BASE_URL": f"{served.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "scripted"}
    output = await served.run(FROM_NPM / "qwen", "--yolo", "Please do script qwen.", **named)
    assert "Qwen Code is through with it." in output
    assert served.written("qwen.txt") == "54\n"


async def test_aider_edits_a_file(served: Served) -> None:
    (served.work / "greeting.txt").write_text("hello\n", encoding="utf-8")
    quiet = (
        "--no-git",
        "--yes-always",
        "--no-check-update",
        "--analytics-disable",
        "--no-show-model-warnings",
    )
    output = await served.run(
        ENVIRONMENTS / "aider" / "bin" / "aider",
        *("--model", "openai/scripted", "--edit-format", "diff", "--no-git", "--yes-always", *quiet),
        *("--message", "Please do script aider.", "greeting.txt"),
        OPENAI_API_BASE=f"{served.url}/v1",
        OPENAI_API_KEY="none",
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    )
    assert "Its greeting names aider:" in output
    assert "Applied edit to greeting.txt" in output
    assert served.written("greeting.txt") == "hello aider\n"


async def test_llm_calls_functions_and_goes_on(served: Served) -> None:
    configure(served, ".config/io.datasette.llm/extra-openai-models.yaml")
    llm = ENVIRONMENTS / "llm" / "bin" / "llm"
    weather = "def weather(city: str) -> str:\n    return 'rain in ' + city\n"
    called = ("--functions", weather, "--td", "Do script weather.")
    for streamed in ((), ("--no-stream",)):
        output = await served.run(llm, "-m", "baton", *streamed, *called)
        assert RAIN in output
        assert "rain in Oslo" in output, "what the function returned"
    assert PLAIN in await served.run(llm, "--continue", "Now script plain.")
    output = await served.run(llm, "-m", "baton", "--schema", "city, degrees int", "Do script report.")
    assert json.loads(output) == {"city": "Bergen", "degrees": 7}


@pytest.mark.parametrize("tool", ["openai_agents", "pydantic_ai", "smolagents"])
async def test_python_frameworks_call_their_tools(served: Served, tool: str) -> None:
    python = ENVIRONMENTS / tool / "bin" / "python"
    await served.run(python, HERE / "python" / f"{tool}_client.py")


@pytest.mark.parametrize("script", ["ai_sdk", "langchain"])
async def test_libraries_of_node_call_their_tools(served: Served, script: str) -> None:
    assert "ok" in await served.run(NODE / "node", HERE / "npm" / f"{script}.mjs")


async def test_open_webui_chats(served: Served, tmp_path: Path) -> None:
    async with open_webui(served, tmp_path) as http:
        signed_in = await http.post("/api/v1/auths/signin", json={"email": "a@localhost", "password": "x"})
        http.headers["authorization"] = f"Bearer {signed_in.json()['token']}"
        models = (await http.get("/api/models")).json()["data"]
        assert {"scripted", claude_code.MODEL} <= {model["id"] for model in models}
        body = {"model": "scripted", "messages": [{"role": "user", "content": "Do script plain."}]}
        whole = await http.post("/api/chat/completions", json=body | {"stream": False})
        assert whole.json()["choices"][0]["message"]["content"] == PLAIN
        streamed = await http.post("/api/chat/completions", json=body | {"stream": True})
        data = [
            line.removeprefix("data: ") for line in streamed.text.splitlines() if line.startswith("data: ")
        ]
        assert data.pop() == "[DONE]"
        deltas = [choice["delta"] for chunk in map(json.loads, data) for choice in chunk["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == PLAIN
    await assert_all_is_freed(served.fleet, served.sdk)


@asynccontextmanager
async def open_webui(served: Served, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Start Open WebUI with a folder of its own; yield a client of its."""
    port = free_port()
    settings = dict(
        line.split("=", 1) for line in configuration("open-webui.env", served.url).splitlines() if line
    )
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(ENVIRONMENTS / "open_webui" / "bin" / "open-webui", "serve"),
            *("--host", "127.0.0.1", "--port", str(port)),
            cwd=folder,
            env=served.environment(**settings, DATA_DIR=str(folder), WEBUI_SECRET_KEY="secret"),
            stdout=log,
            stderr=log,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
            async with asyncio.timeout(4 * PATIENCE_S):
                while not await answers(http):
                    assert process.returncode is None, (folder / "log").read_text(encoding="utf-8")
                    await asyncio.sleep(0.2)
            yield http
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def answers(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


async def test_a_conversation_of_claude_code_s(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url, headers=claude_code.HEADERS, timeout=60) as http:
        quota = await http.post("/v1/messages?beta=true", json=claude_code.QUOTA)
        assert (quota.status_code, quota.json()["stop_reason"]) == (200, "max_tokens"), quota.text
        count = await http.post("/v1/messages/count_tokens?beta=true", json=claude_code.COUNT)
        assert count.json()["input_tokens"] > 500, count.text

        title, _ = await message(http, claude_code.title("Please do script title."))
        assert json.loads(title["content"][0]["text"]) == {"title": "Two files"}

        messages = [claude_code.asked("Please do script claude.")]
        called, ignored = await message(http, claude_code.turn(messages))
        said, tool_use = called["content"]
        assert (called["stop_reason"], said) == ("tool_use", {"type": "text", "text": "Claude looks."})
        assert (tool_use["name"], tool_use["input"]) == ("Bash", {"command": "ls", "description": "List"})
        assert ignored == ["context_management", "tools[2]"]

        # It sends a block of its thinking back, where there was one, and its own note of who called the tool.
        thought = {"type": "thinking", "thinking": "Let me look.", "signature": ""}
        tool_use |= {"caller": {"type": "direct"}, "cache_control": {"type": "ephemeral"}}
        messages += [
            {"role": "assistant", "content": [thought, said, tool_use]},
            claude_code.resulted(tool_use["id"], "a.txt\nb.txt"),
        ]
        ended, _ = await message(http, claude_code.turn(messages))
        assert ended["stop_reason"] == "end_turn"
        assert ended["content"] == [{"type": "text", "text": "There are two files there."}]
        assert ended["usage"]["cache_read_input_tokens"] > 5000, "the first turn's prompt"
    await assert_all_is_freed(served.fleet, served.sdk)


async def message(http: httpx.AsyncClient, body: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the message that a stream's events make, each of which is valid, and the paths left out."""
    response = await http.post("/v1/messages?beta=true", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    made: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    open_block: int | None = None
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] == "ping":
            continue
        TypeAdapter(RawMessageStreamEvent).validate_python(event)
        match event["type"]:
            case "message_start":
                made = event["message"]
            case "content_block_start":
                assert (open_block, event["index"]) == (None, len(made["content"]))
                open_block = event["index"]
                made["content"].append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == open_block
                match event["delta"]:
                    case {"type": "text_delta", "text": text}:
                        made["content"][open_block]["text"] += text
                    case {"type": "input_json_delta", "partial_json": text}:
                        inputs[event["index"]] = inputs.get(event["index"], "") + text
            case "content_block_stop":
                assert event["index"] == open_block
                if open_block in inputs:
                    made["content"][open_block]["input"] = json.loads(inputs[open_block])
                open_block = None
            case "message_delta":
                made |= event["delta"]
                made["usage"] |= event["usage"]
    assert event["type"] == "message_stop"
    return made, response.headers.get("x-baton-ignored", "").split(",")
