"""Arguments become requests, or are refused by name."""

import json
from pathlib import Path

import pytest

from baton.cli.arguments import parser, specs_of
from baton.cli.program import main
from baton.cli.request_flags import request_of
from baton.types import Grammar, JsonSchema, OneOf, Regex, Sampling, Slo, SloClass, Stop
from tests.baton.cli.examples import FUNCTION
from tests.baton.scripted_service import ScriptedRouter


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


def model_folders(parent: Path, *names: str) -> list[str]:
    """Return the flags of models whose folders are made."""
    flags: list[str] = []
    for name in names:
        (parent / name).mkdir()
        (parent / name / "config.json").touch()
        flags += ["--model", str(parent / name)]
    return flags


def test_each_model_gets_a_fleet_of_its_own(tmp_path: Path) -> None:
    models = model_folders(tmp_path, "a", "b", "c")
    more = ["--routers", "2", "--run-dir", "runs", "--kv-disk", "kv"]
    specs = specs_of(parser().parse_args(["up", *models, *more]))
    assert [spec.model.name for spec in specs] == ["a", "b", "c"]
    assert [spec.gateways for spec in specs] == [1, 0, 0]
    assert [spec.router_port for spec in specs] == [50051, 50053, 50055]
    assert [str(spec.run_dir) for spec in specs] == ["runs/3", "runs/2", "runs/1"]
    assert [str(spec.kv_disk) for spec in specs] == ["kv/a", "kv/b", "kv/c"]
    assert {spec.extra_args["decode"] for spec in specs} == {("--workers-per-host", "6")}
    assert len({spec.secure for spec in specs}) == 1
    (alone,) = specs_of(parser().parse_args(["up", *models[:2]]))
    assert (alone.gateways, alone.run_dir, alone.extra_args) == (1, None, {})


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--served-model-name", "x"], "served_model_names"),
        (["--lora", "x=y"], "lora"),
        (["--redis", "redis://h:1"], "redis_url"),
    ],
)
def test_flags_of_one_fleet_are_refused_beside_several_models(
    tmp_path: Path, flags: list[str], field: str
) -> None:
    args = parser().parse_args(["up", *model_folders(tmp_path, "a", "b"), *flags])
    with pytest.raises(ValueError, match=f"{field} is set with 2 models: it must be left out"):
        specs_of(args)
