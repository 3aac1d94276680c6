import subprocess
import sys

import baton


def test_all_names_are_there_sorted_and_no_more_than_agreed() -> None:
    assert sorted(baton.__all__) == [
        "Accepted",
        "AsyncClient",
        "BatonError",
        "Chat",
        "ChatMessage",
        "ChoiceDelta",
        "ChoiceFinished",
        "Client",
        "Completion",
        "ContentDelta",
        "Credentials",
        "FinishReason",
        "Finished",
        "Grammar",
        "JsonObject",
        "JsonSchema",
        "NamedTool",
        "OneOf",
        "Program",
        "PromptLogprobs",
        "Queued",
        "ReasoningDelta",
        "Regex",
        "Sampling",
        "Slo",
        "SloClass",
        "Stop",
        "Timeout",
        "Tokens",
        "Tool",
        "ToolCall",
        "ToolCallArguments",
        "ToolCallBegun",
        "ToolCallEnded",
        "ToolMode",
        "message_of",
    ]
    assert all(hasattr(baton, name) for name in baton.__all__)


def test_stubs_load_without_the_sdk() -> None:
    script = "import sys, baton.v1.inference_pb2; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name for name in run.stdout.split() if name.startswith("baton")}
    assert {name for name in loaded if not name.startswith("baton.v1")} == {"baton"}


def test_importing_the_sdk_and_the_launcher_stays_light() -> None:
    script = "import sys, baton, baton.fleet; print(*{name.partition('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"torch", "numpy", "transformers", "tokenizers", "redis", "rich", "structlog"}
    assert heavy.isdisjoint(run.stdout.split())
