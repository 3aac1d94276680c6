"""The bodies of OpenAI's requests, with the fields that vLLM adds and Baton's own `slo` and `program`.

Unknown fields are left out. Known ones that this fleet cannot honour are refused by name, here (`unserved`)
or by `convert`. Ranges are checked by the router, so that every API has the same ones.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from gateway.serving.slo import MAX_MESSAGES, NullIsUnset, ProgramFields, SloFields, Strict

Text = Annotated[str, NullIsUnset]
Flag = Annotated[bool, NullIsUnset]
PastText = Annotated[str, BeforeValidator(lambda text: "" if text is None else text)]
"""A text that some clients leave out by null."""


class StreamOptions(Strict):
    include_usage: Flag = False
    continuous_usage_stats: Flag = False
    include_obfuscation: bool | None = None


class SchemaFormat(Strict):
    """A named schema. `strict` is always kept, whether it is set or not."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class StructuredOutputs(Strict):
    """vLLM's way to ask for a format: one of these."""

    json_: dict[str, Any] | bool | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class SamplingFields(Strict):
    """The fields that every request for a generation has."""

    unserved: ClassVar[frozenset[str]] = frozenset(
        {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}  # other servers' names of formats
        | {"grammar", "regex", "ebnf", "json_schema"}
        | {"use_beam_search", "logits_processors", "prompt_logprobs"}
    )

    model: Text = ""
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    # vLLM's additions
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Annotated[int, NullIsUnset] = 0
    stop_token_ids: list[int] | None = None
    ignore_eos: Flag = False
    include_stop_str_in_output: Flag = False
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    # Baton's own
    slo: SloFields | None = None
    program: ProgramFields | None = None


class GenerationBody(SamplingFields):
    """The fields that chats and completions have in common."""

    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    response_format: ResponseFormat | None = None
    # vLLM's additions
    return_token_ids: bool | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def counts_usage(self) -> bool:
        """Whether every chunk carries the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


class FunctionCall(Strict):
    """A function and its arguments: the text that the model wrote, perhaps the beginning of an object."""

    name: str
    arguments: PastText


class MessageCall(Strict):
    """A call that an assistant's message made. `index` is what streamed calls have.

    A call of a tool that is no function (`custom`) is left out by `messages`.
    """

    id: str
    type: Text = "function"
    function: FunctionCall | None = None
    custom: Any = None
    index: int | None = None


class Message(Strict):
    """One message of a chat. `refusal` is what an assistant said instead of its content."""

    unserved: ClassVar[frozenset[str]] = frozenset({"audio", "function_call"})

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[MessageCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Function(Strict):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Strict):
    type: Literal["function"]
    function: Function


class ChatFields(Strict):
    """The fields that make a chat."""

    add_generation_prompt: bool | None = None
    continue_final_message: Flag = False
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


class ChatBody(GenerationBody, ChatFields):
    """`POST /v1/chat/completions`."""

    unserved: ClassVar[frozenset[str]] = (
        SamplingFields.unserved
        | {"audio", "functions", "function_call", "echo"}
        | {"chat_template", "documents"}
    )

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    metadata: Any = None
    store: bool | None = None
    service_tier: str | None = None
    verbosity: str | None = None
    modalities: list[str] | None = None
    # Names of the caller's own, which need nothing from the fleet.
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    unserved: ClassVar[frozenset[str]] = SamplingFields.unserved | {"suffix", "prompt_embeds"}

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = 16
    logprobs: int | None = None
    echo: bool | None = None
    add_special_tokens: Flag = True


class TokenizeBody(ChatFields):
    """`POST /tokenize`: a text, or a chat, whose template writes the special tokens."""

    unserved: ClassVar[frozenset[str]] = frozenset({"functions", "chat_template", "documents"})

    model: Text = ""
    add_special_tokens: bool | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)


class DetokenizeBody(Strict):
    """`POST /detokenize`."""

    model: Text = ""
    tokens: list[int] = Field(min_length=1)
