"""`baton generate` shows what a fleet streams."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from baton.cli.program import main
from tests.baton.cli.examples import FUNCTION
from tests.baton.scripted_service import HANG, ScriptedRouter, accepted, ended, finished, tokens
from tests.patience import PATIENCE_S


def test_generate_shows_reasoning_and_calls(
    router: ScriptedRouter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([FUNCTION]))
    text = '<think>Hm</think>So: <tool_call>\n{"name": "get_weather", "arguments": {"a": 1}}\n</tool_call>'
    said = tokens(0, 1, text=text)
    router.scripts = [(accepted(tool_format="hermes", reasoning_format="think"), said, ended(1), finished())]
    assert main(["generate", "hi", "--tools", str(file), "--address", router.address]) == 0
    assert capsys.readouterr().out == '(Hm)\nSo:\n→ get_weather({"a": 1})\n'


def test_generate_streams_the_text_and_ends_with_where_the_time_went(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "hello", "--address", router.address]) == 0
    out, err = capsys.readouterr()
    assert out == "<10><11><12>\n"
    assert "4 tokens (length) in 40 ms · TTFT 12 ms · TPOT 5.5 ms" in err
    assert "queue 1 + prefill 11 + handoff 3 + decode 24 + relay 1 ms · disaggregated" in err
    assert router.calls("Generate")[0].text == "hello"


def test_generate_shows_several_choices_one_after_the_other(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.scripts = [
        (
            accepted(),
            tokens(0, 1, choice=1),
            tokens(0, 2, choice=0),
            tokens(1, 3, choice=1),
            ended(2, choice=1),
            ended(1, choice=0),
            finished(),
        )
    ]
    assert main(["generate", "hello", "--n", "2", "--address", router.address]) == 0
    assert capsys.readouterr().out == "[1] <1><3>\n[0] <2>\n"


def test_generate_json_has_one_event_per_line(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "hello", "--json", "--address", router.address]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == [
        "Accepted",
        "Queued",
        "Tokens",
        "Tokens",
        "ChoiceFinished",
        "Finished",
    ]
    assert events[3]["token_ids"] == [11, 12]
    assert events[4]["reason"] == "length"


def test_generate_reads_stdin_and_can_ask_it_as_a_chat(
    router: ScriptedRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    assert main(["generate", "-", "--chat", "--address", router.address]) == 0
    [message] = router.calls("Generate")[0].chat.messages
    assert (message.role, message.content) == ("user", "from a pipe")


@pytest.mark.parametrize("before", ["", "trap '' INT; "], ids=["as it is", "ignored by the shell"])
def test_interrupting_generate_cancels_it_on_the_fleet(router: ScriptedRouter, before: str) -> None:
    router.scripts = [(accepted(), tokens(0, 10), HANG)]
    command = ["sh", "-c", f'{before}exec "$@"', "sh"]
    command += [sys.executable, "-m", "baton.cli", "generate", "hello", "--address", router.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"<10>"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert err == b""
    assert len(router.calls("Cancel")) == 1
