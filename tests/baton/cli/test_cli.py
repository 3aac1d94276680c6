import asyncio
import contextlib
import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from baton.cli.__main__ import main
from baton.cli.arguments import parser
from baton.cli.commands.chat import read_lines
from baton.cli.exits import program
from baton.cli.request_flags import request_of
from baton.operators.v1 import fleet_pb2
from baton.types import Grammar, JsonSchema, OneOf, Regex, Sampling, Slo, SloClass, Stop
from baton.v1 import errors_pb2, generation_pb2, inference_pb2
from tests.baton.scripted_service import (
    BREAK,
    HANG,
    WHOLE,
    Fail,
    ScriptedRouter,
    accepted,
    bad_field,
    because,
    ended,
    finished,
    retry_after,
    tokens,
)
from tests.patience import PATIENCE_S


@pytest.fixture
def router() -> Iterator[ScriptedRouter]:
    """Served from a loop of its own, since a command runs one of its own too."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    scripted = ScriptedRouter()
    asyncio.run_coroutine_threadsafe(scripted.__aenter__(), loop).result(10)
    yield scripted
    asyncio.run_coroutine_threadsafe(scripted.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_flags_become_request_parts() -> None:
    line = (
        "generate hi --temperature 0 --top-k 3 --logit-bias 7=-2.5 --logit-bias 8=1 --n 2 --max-tokens 5 "
        "--stop a --stop b --stop-token-id 4 --ttft-ms 100 --itl-ms 40 --class interactive --allow-at-risk "
        "--adapter red"
    )
    assert request_of(parser().parse_args(line.split())) == {
        "sampling": Sampling(temperature=0.0, top_k=3, logit_bias={7: -2.5, 8: 1.0}, n=2),
        "stop": Stop(max_tokens=5, strings=("a", "b"), token_ids=(4,)),
        "slo": Slo(ttft_ms=100, itl_ms=40, slo_class=SloClass.INTERACTIVE, allow_at_risk=True),
        "output_format": None,
        "adapter": "red",
    }


def test_flags_left_out_leave_the_fleets_defaults() -> None:
    args = parser().parse_args(["generate", "hi"])
    assert request_of(args) == {
        "sampling": Sampling(),
        "stop": Stop(),
        "slo": Slo(),
        "output_format": None,
        "adapter": "",
    }


def test_a_format_is_given_as_it_is_or_in_a_file(tmp_path: Path) -> None:
    schema, lark = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"type": "null"}')
    lark.write_text('start: "a"\n')
    for flags, expected in [
        (["--schema", '{"type": "object"}'], JsonSchema('{"type": "object"}')),
        (["--schema", str(schema)], JsonSchema('{"type": "null"}')),
        (["--regex", "[a-c]+"], Regex("[a-c]+")),
        (["--grammar", str(lark)], Grammar('start: "a"\n')),
        (["--grammar", 'start: "b"'], Grammar('start: "b"')),
        (["--choice", "yes", "--choice", "no"], OneOf(("yes", "no"))),
    ]:
        assert request_of(parser().parse_args(["generate", "hi", *flags]))["output_format"] == expected


FUNCTION = {"name": "get_weather", "description": "d", "parameters": {"type": "object"}, "strict": True}


@pytest.mark.parametrize("bare", [True, False])
def test_tools_come_from_a_file_in_both_ways_of_writing_them(
    router: ScriptedRouter, tmp_path: Path, bare: bool
) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([FUNCTION if bare else {"type": "function", "function": FUNCTION}]))
    line = [
        "generate",
        "hi",
        "--tools",
        str(file),
        "--tool-choice",
        "get_weather",
        "--address",
        router.address,
    ]
    assert main(line) == 0
    chat = router.calls("Generate")[0].chat
    assert [(tool.name, json.loads(tool.parameters), tool.strict) for tool in chat.tools] == [
        ("get_weather", {"type": "object"}, True)
    ]
    assert chat.tool_choice.name == "get_weather"


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


@pytest.mark.parametrize(
    "line", ["", "dance", "generate", "generate hi --logit-bias x", "up --placement nowhere", "health here"]
)
def test_wrong_usage_is_exit_code_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(line.split())
    assert leaving.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("baton")
    assert err.endswith("--help\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("generate hi --n -1", "argument --n: -1 is too small: it must be 0 or more"),
        ("generate hi --top-k many", "argument --top-k: 'many' is not a whole number"),
        ("generate hi --temperature hot", "argument --temperature: 'hot' is not a number"),
        ("generate hi --logit-bias x", "argument --logit-bias: 'x' is not ID=X, such as 17=-2.5"),
        ("generate hi --schema {", "argument --schema: '{' is not JSON, nor a file with JSON"),
        ("generate hi --schema /no", "argument --schema: '/no' cannot be read: No such file or directory"),
        ("generate hi --schema {} --regex a", "argument --regex: not allowed with argument --schema"),
        ('generate hi --tools {"name":1}', "does not contain a list of tools such as"),
        ("generate hi --tools [[]]", "does not contain a list of tools such as"),
        ("generate hi --tools [{}]", "does not contain a list of tools such as"),
        ("generate hi --address host", "argument --address: 'host' is not HOST:PORT"),
        ("generate hi --address host:0", "argument --address: 'host:0' is not HOST:PORT"),
        ("generate hi --timeout-s nan", "argument --timeout-s: nan is not a time to wait"),
        ("status --interval-s 0", "argument --interval-s: 0 is not a time to wait: it must be over 0"),
        ("health host:70000", "argument HOST:PORT: 'host:70000' is not HOST:PORT"),
        ("demo --max-tokens 0", "argument --max-tokens: 0 is too small: it must be 1 or more"),
    ],
)
def test_a_wrong_value_is_refused_by_the_argument_and_what_would_do(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(line.split())
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("address", ["router-0:50051", "10.0.0.7:1", "[::1]:65535"])
def test_names_and_both_kinds_of_numbers_are_addresses(address: str) -> None:
    assert parser().parse_args(["health", address]).address == address


def test_what_the_contract_cannot_carry_is_refused_with_what_it_can(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "hi", "--top-k", str(2**32), "--address", router.address]) == 2
    expected = "sampling.top_k is 4294967296: it must be a whole number from 0 to 4294967295"
    assert expected in capsys.readouterr().err


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


def test_a_failed_generation_is_exit_code_1_with_the_reason(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    end = ended(1, reason=generation_pb2.FINISH_REASON_FAILED)
    router.scripts = [(accepted(), tokens(0, 1), end, finished(error="all workers died"))]
    assert main(["generate", "hello", "--address", router.address]) == 1
    assert "baton: all workers died" in capsys.readouterr().err


_REFUSAL = errors_pb2.SloRefusal(attainable_ttft_ms=950, attainable_tpot_ms=45, attainable_itl_ms=60)


@pytest.mark.parametrize(
    ("fail", "code", "says"),
    [
        (
            Fail(grpc.StatusCode.INVALID_ARGUMENT, "stop.max_tokens is 0", (bad_field("f", "d"),)),
            2,
            "baton: stop.max_tokens is 0",
        ),
        (Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", (retry_after(2),)), 4, "try again in 2.0 s"),
        (
            Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "no", (retry_after(2), _REFUSAL)),
            4,
            "possible now: --ttft-ms 950 --tpot-ms 45 --itl-ms 60, or try again in 2.0 s",
        ),
        (Fail(grpc.StatusCode.INTERNAL, "oh"), 1, "baton: INTERNAL: oh"),
        (BREAK, 3, "the router went away\n"),
        (
            Fail(grpc.StatusCode.UNAVAILABLE, "Redis does not answer", (because("REDIS_AWAY"),)),
            4,
            "Redis does not answer\n",
        ),
        (Fail(grpc.StatusCode.UNIMPLEMENTED, "?"), 1, "is it a worker's address"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str], fail: Fail, code: int, says: str
) -> None:
    router.scripts = [(fail,)]
    assert main(["generate", "hello", "--address", router.address, "--connect-s", "0.1"]) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


_PROMISE = inference_pb2.LatencyPromise(
    predicted_ttft_ms=80.04, predicted_tpot_ms=7.5, predicted_itl_ms=9, ttft_ms=100, at_risk=False
)


def test_quote_asks_for_the_promise_and_sends_nothing(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.answers["Quote"] = inference_pb2.QuoteResponse(
        verdict=inference_pb2.VERDICT_ACCEPTED, promise=_PROMISE, prompt_tokens=7
    )
    assert main(["quote", "hi", "--ttft-ms", "100", "--max-tokens", "5", "--address", router.address]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "accepted, for a prompt of 7 tokens",
        "  TTFT       80.0 ms predicted, 100 ms asked for",
        "  TPOT        7.5 ms predicted, not asked for",
        "  ITL         9.0 ms predicted, not asked for",
    ]
    [asked] = router.calls("Quote")
    assert (asked.request.text, asked.request.slo.ttft_ms, asked.request.stop.max_tokens) == ("hi", 100, 5)
    assert router.calls("Generate") == []


def test_a_refusing_quote_says_what_is_possible_and_is_exit_code_4(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.answers["Quote"] = inference_pb2.QuoteResponse(
        verdict=inference_pb2.VERDICT_REFUSED, promise=_PROMISE, retry_after_ms=1500, refusal=_REFUSAL
    )
    assert main(["quote", "hi", "--address", router.address]) == 4
    said = capsys.readouterr().out
    assert "possible now: --ttft-ms 950 --tpot-ms 45 --itl-ms 60\n" in said
    assert "try again in 1.5 s" in said
    assert main(["quote", "hi", "--json", "--address", router.address]) == 4
    quote = json.loads(capsys.readouterr().out)
    assert (quote["verdict"], quote["retry_after_s"], quote["attainable"]["itl_ms"]) == ("refused", 1.5, 60)


def test_no_fleet_is_exit_code_3_and_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--address", "127.0.0.1:1", "--connect-s", "0.1"]) == 3
    expected = "no router could be reached at 127.0.0.1:1; is a fleet running? start one with: baton up"
    assert expected in capsys.readouterr().err


def test_advice_names_the_program_as_it_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "baton"
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert program() == str(script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "baton"


def test_a_call_that_takes_too_long_says_how_long_it_had(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.scripts = [(accepted(), HANG)]
    assert main(["generate", "hi", "--timeout-s", "0.2", "--address", router.address]) == 1
    assert "baton: not done within 0.2 s\n" in capsys.readouterr().err


def test_status_prints_one_snapshot_when_nobody_watches(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.answers["Describe"] = fleet_pb2.DescribeResponse(model_name="demo", block_size=16)
    worker = fleet_pb2.WorkerStatus(worker_id="decode-0", connected=True, num_blocks=100)
    router.snapshots = [fleet_pb2.WatchResponse(router_id="router-0", workers=[worker])]
    assert main(["status", "--address", router.address]) == 0
    out = capsys.readouterr().out
    assert "decode-0" in out
    assert "KV blocks of 16" in out
    assert main(["status", "--json", "--once", "--address", router.address]) == 0
    assert json.loads(capsys.readouterr().out)["workers"][0]["worker_id"] == "decode-0"


def test_health_of_a_server_without_the_service_is_not_healthy(
    router: ScriptedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", router.address]) == 3
    assert "UNIMPLEMENTED" in capsys.readouterr().out


def test_a_model_that_is_no_folder_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--model", str(tmp_path)]) == 2
    assert "it must be a folder with a model's config.json" in capsys.readouterr().err


def test_health_imports_nothing_that_takes_long(router: ScriptedRouter) -> None:
    script = (
        "import sys; from baton.cli.__main__ import main; main(sys.argv[1:]);"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, "health", router.address], capture_output=True, text=True, check=True
    )
    assert {"rich", "torch", "numpy"}.isdisjoint(run.stdout.split())


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
