"""`baton chat` holds a conversation."""

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest

from baton.cli.commands.chat import read_lines
from baton.cli.program import main
from baton.v1 import inference_pb2
from tests.baton.cli.examples import FUNCTION
from tests.baton.scripted_service import WHOLE, ScriptedRouter, accepted, ended, finished, tokens


def test_chat_remembers_resets_and_leaves(
    router: ScriptedRouter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    router.answers["ListModels"] = inference_pb2.ListModelsResponse(
        models=[inference_pb2.Model(name="demo", max_context_tokens=512)]
    )
    router.scripts = [WHOLE]
    lines = "hi\nand?\n/reset\nagain\n/quit\nnever asked"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert main(["chat", "--system", "be brief", "--address", router.address]) == 0
    asked = [
        [(message.role, message.content) for message in request.chat.messages]
        for request in router.calls("Generate")
    ]
    system, hi = ("system", "be brief"), ("user", "hi")
    assert asked == [
        [system, hi],
        [system, hi, ("assistant", "<10><11><12>"), ("user", "and?")],
        [system, ("user", "again")],
    ]
    assert "demo, 512 tokens of context" in capsys.readouterr().out


def test_chat_lets_the_user_answer_calls(
    router: ScriptedRouter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    router.answers["ListModels"] = inference_pb2.ListModelsResponse(models=[inference_pb2.Model(name="demo")])
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([FUNCTION]))
    call = '<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>'
    both = call % '{"city": "Rome"}' + "\n" + call % "{}"
    cut = '\n<tool_call>\n{"name": "get_weather", "arguments": {"a'
    calls = (
        accepted(tool_format="hermes"), tokens(0, 1, text=both + cut), ended(1), finished()
    )  # fmt: skip
    router.scripts = [calls, WHOLE]
    monkeypatch.setattr(sys, "stdin", io.StringIO("warm?\n31\n32\n/quit\n"))
    line = ["chat", "--tools", str(file), "--tool-choice", "required", "--address", router.address]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert out.count('get_weather({"city": "Rome"}) returns> ') == 1
    assert out.count("get_weather({}) returns> ") == 1
    assert "→ get_weather({})" in out
    first, second = (request.chat for request in router.calls("Generate"))
    assert first.tool_choice.mode == inference_pb2.TOOL_MODE_REQUIRED
    assert not second.HasField("tool_choice"), "else the model could never answer"
    asked, made, *returned = second.messages
    assert (asked.content, len(made.tool_calls)) == ("warm?", 2), "a call that breaks off is none"
    ids = [call.id for call in made.tool_calls]
    assert [(m.role, m.tool_call_id, m.name, m.content) for m in returned] == [
        ("tool", ids[0], "get_weather", "31"),
        ("tool", ids[1], "get_weather", "32"),
    ]


def test_chat_refuses_an_unserved_model_before_the_first_question(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.answers["ListModels"] = inference_pb2.ListModelsResponse(models=[inference_pb2.Model(name="demo")])
    assert main(["chat", "--model", "other", "--address", router.address]) == 2
    assert "--model is 'other': this fleet serves 'demo'" in capsys.readouterr().err


def test_chat_leaves_on_the_second_interrupt_in_a_row() -> None:
    asked = iter(["^C", "hello", "^C", "^C", "never"])
    heard: list[str] = []

    def ask() -> str:
        line = next(asked)
        if line == "^C":
            raise KeyboardInterrupt
        return line

    def hear(line: str) -> bool:
        heard.append(line)
        return True

    with contextlib.redirect_stdout(io.StringIO()):
        read_lines(ask, hear)
    assert heard == ["hello"]
    assert next(asked) == "never"
