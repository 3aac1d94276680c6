"""Numbers that the contract states in its comments are those that the router goes by."""

from __future__ import annotations

import re

import pytest

from router.core.model.session import MAX_CALLS
from router.core.model.state import CoreConfig
from router.intake.sizes import (
    MAX_LOGIT_BIAS,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_SCHEMA_BYTES,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOOL_CALLS,
    MAX_TOOLS,
)
from router.intake.validation import (
    DEFAULT_MAX_TOKENS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_NAME_CHARS,
    MAX_RESUME_GRACE_MS,
)
from router.limits import MIN_PING_INTERVAL_MS, Limits
from router.links.client_stream import MAX_OUTBOX_TOKENS, MAX_PENDING_TOKENS
from router.links.shell import STALL_S
from scheduling.request import MAX_SLO_MS
from tools.house.source_tree import ROOT

LIMITS = Limits()
KEPT = CoreConfig("r")


def comments(name: str) -> str:
    """All comments of one file, as running text."""
    text = (ROOT / "proto/baton/v1" / f"{name}.proto").read_text(encoding="utf-8")
    return re.sub(r"\s+", " ", " ".join(re.findall(r"//(.*)", text)))


def spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")


STATED = [
    ("inference", f"a message that is sent {LIMITS.max_message_bytes >> 20} MiB *"),
    ("inference", f"metadata of a call {LIMITS.max_metadata_bytes >> 10} KiB *"),
    ("inference", f"a prompt, as text {LIMITS.max_prompt_bytes >> 20} MiB * of UTF-8"),
    ("inference", f"request_id, tenant, user {MAX_NAME_CHARS} printable ASCII characters"),
    ("inference", f"calls at once on a connection {LIMITS.max_streams} *"),
    ("inference", f"generations at once in GenerateMany {LIMITS.max_streams} *"),
    ("inference", f"{MAX_OUTBOX_TOKENS} for all generations of one GenerateMany"),
    ("inference", f"calls that receive one request {MAX_CALLS} "),
    ("inference", f"Up to {MAX_CALLS} calls can receive one request"),
    ("inference", f"tokens that wait to be read {MAX_PENDING_TOKENS};"),
    ("inference", f"pings one in {MIN_PING_INTERVAL_MS // 1000} s,"),
    ("inference", f"for {KEPT.retention_s:g} s, or until {KEPT.max_retained} others have ended"),
    ("inference", f"Accepted: up to {spaced(MAX_RESUME_GRACE_MS)}."),
    ("errors", f"a message over {LIMITS.max_message_bytes >> 20} MiB or metadata over "),
    ("errors", f"metadata over {LIMITS.max_metadata_bytes >> 10} KiB"),
    ("generation", f"Accepted: 1 to {MAX_N}."),
    ("generation", f"Accepted: 0 to {MAX_LOGPROBS}."),
    ("generation", f"Default: {DEFAULT_MAX_TOKENS}, or the room left in the model's context"),
    ("generation", f"up to {MAX_STOP_STRINGS}, each of 1 to {MAX_STOP_STRING_CHARS} characters"),
    ("generation", f"up to {MAX_STOP_TOKEN_IDS} ids of the vocabulary"),
    ("generation", f"at most {MAX_LOGIT_BIAS} ids of the vocabulary, each with"),
    (
        "inference",
        f"messages of a chat {MAX_MESSAGES}, each with at most {MAX_PARTS} parts and {MAX_TOOL_CALLS} ",
    ),
    ("inference", f"tools of a chat {MAX_TOOLS}, with {MAX_SCHEMA_BYTES >> 10} KiB of schemas"),
    ("inference", f"Accepted: up to {MAX_TOOLS}, each with a name of its own"),
    ("inference", f"Accepted: up to {MAX_SCHEMA_BYTES >> 10} KiB for all tools"),
    ("inference", f"1 to {MAX_MESSAGES}. The model's chat template"),
    ("generation", f"accept 1 to {spaced(MAX_SLO_MS)}, a day"),
]


@pytest.mark.parametrize(("name", "said"), STATED)
def test_a_stated_number_is_the_one_that_counts(name: str, said: str) -> None:
    assert said in comments(name)


def test_a_reader_that_takes_nothing_ends_within_the_stated_time() -> None:
    assert STALL_S == 30
    assert "half a minute to a minute" in comments("inference")


def test_the_server_pings_as_stated() -> None:
    options = dict(LIMITS.server_options())
    interval_s, timeout_s = (options[f"grpc.keepalive_{name}_ms"] // 1000 for name in ("time", "timeout"))
    said = f"every {interval_s} s, and ends a connection that does not answer within {timeout_s} s"
    assert said in comments("inference")
