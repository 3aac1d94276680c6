"""Guards against failures of the HTTP doors: stored responses, calls of tools, and formats."""

from __future__ import annotations

from tests.mutations.guard import Failure, Guard

DOORS = (
    Failure(
        "stored calls",
        "vllm#43244",
        "a conversation that went on by previous_response_id lost its calls of functions and their results",
        (
            Guard(
                "gateway/responses/store.py",
                '[*self.earlier, *self.input, *self.response["output"]]',
                "[*self.earlier, *self.input]",
                "tests/gateway/responses/test_stored.py::test_a_conversation_goes_on_from_a_stored_response",
            ),
        ),
    ),
    Failure(
        "stored without end",
        "vllm#48454",
        "responses were stored until the server had no memory left",
        (
            Guard(
                "gateway/responses/store.py",
                "        while total > limits.responses_max_bytes:\n",
                "        while False:\n",
                "tests/gateway/responses/test_store.py"
                "::test_over_the_limit_the_largest_tenant_loses_its_oldest",
            ),
            Guard(
                "runtime/state/lua/durable/keep_response.lua",
                "for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do",
                "for _, gone in ipairs({}) do",
                "tests/gateway/responses/test_store.py::test_time_ends_everything_and_is_counted",
            ),
        ),
    ),
    Failure(
        "tool calls",
        "vllm#57490, vllm#45167",
        "calls were lost, or text around them, by where a stream was cut or by what their arguments say",
        (
            Guard(
                "model_output/formats/source.py",
                "end = markers.safe_end(self._text, self._at)",
                "end = len(self._text)",
                "tests/model_output/formats/test_parser.py::test_calls_come_back_as_written",
            ),
            Guard(
                "model_output/formats/parser.py",
                '        output.content(ending.pattern.sub("", text[:end]))\n',
                "",
                "tests/model_output/formats/test_parser.py::test_a_text_without_calls_is_all_content",
            ),
            Guard(
                "model_output/formats/grammar.py",
                'self._rules.append(rf"{first}: {_TEXT} & ~/\\s*({begins})(?s:.*)/")',
                'self._rules.append(f"{first}: {_TEXT}")',
                "tests/model_output/formats/test_grammar.py::test_what_a_template_writes_follows_the_grammars",
            ),
        ),
    ),
    Failure(
        "thoughts before a format",
        "dynamo#11203, vllm#48863",
        "the JSON of a model that thinks came as reasoning, and the answer was empty",
        (
            Guard(
                "model_output/formats/grammar.py",
                "return writer.grammar(body, body, reasoning_open=reasoning_open)",
                'return f"start: {body}\\n"',
                "tests/model_output/formats/test_grammar.py::test_a_model_may_think_before_it_keeps_to_a_format",
            ),
        ),
    ),
    Failure(
        "tools beside a format",
        "vllm#39929",
        "a response format kept the model from calling tools",
        (
            Guard(
                "model_output/formats/grammar.py",
                'body = f"({body} | {writer.forced(parallel=parallel)})"',
                "pass",
                "tests/model_output/formats/test_grammar.py::test_an_output_is_in_a_format_or_calls",
            ),
            Guard(
                "model_output/formats/parser.py",
                "if self._has_format and not has_calls:",
                "if False:",
                "tests/vectors/outputs/test_parser.py::test_a_text_says_what_is_expected",
            ),
        ),
    ),
)
