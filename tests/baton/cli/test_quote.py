"""`baton quote` asks for a promise and sends nothing."""

import json

import pytest

from baton.cli.program import main
from baton.v1 import inference_pb2
from tests.baton.cli.examples import REFUSAL
from tests.baton.scripted_service import ScriptedRouter

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
        verdict=inference_pb2.VERDICT_REFUSED, promise=_PROMISE, retry_after_ms=1500, refusal=REFUSAL
    )
    assert main(["quote", "hi", "--address", router.address]) == 4
    said = capsys.readouterr().out
    assert "possible now: --ttft-ms 950 --tpot-ms 45 --itl-ms 60\n" in said
    assert "try again in 1.5 s" in said
    assert main(["quote", "hi", "--json", "--address", router.address]) == 4
    quote = json.loads(capsys.readouterr().out)
    assert (quote["verdict"], quote["retry_after_s"], quote["attainable"]["itl_ms"]) == ("refused", 1.5, 60)
