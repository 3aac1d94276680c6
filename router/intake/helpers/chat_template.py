"""Render chat templates as transformers does, without importing it.

A template comes with a model and is not trusted, so it runs in jinja's immutable sandbox, and in a helper
process within limits of time and memory. What it takes too long for, or too much memory, ends with an error.
Only a single operation that takes as long again, such as a power of large numbers, ends the process.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import resource
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from router.intake.helpers.plain_text import Marks
from router.request import ChatRefused, Conversation, template_tools

LIMIT_S = 2.0
"""The most time of a processor that a template may take for one chat, or to be compiled."""
LIMIT_BYTES = 1 << 30
"""The most memory that it may take beside what the process has already."""
_PAGE_BYTES = resource.getpagesize()


class TemplateRefused(Exception):
    """The template raised an error. Its message says which conversations it takes."""


class _GenerationBlock(jinja2.ext.Extension):
    """A block that marks the assistant's text for training. Rendering passes it through."""

    tags = {"generation"}  # noqa: RUF012 -- jinja's own way to declare them

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON. Jinja's own filter would escape HTML, which no model expects."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(format: str) -> str:
    return dt.datetime.now().strftime(format)  # noqa: DTZ005 -- the local date, as templates expect


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    return environment


_MAX_CHARACTERS = 16 << 20
"""Characters that a rendered chat may have in any case."""
_MAX_GROWTH = 16
"""Characters for each byte of a longer chat."""
_MAX_REASON = 1000
"""Most characters of what a template says when it refuses a chat."""
_CONTINUE_HERE = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the last message while the template runs, as in transformers."""
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""The names by which templates know what an assistant thought."""


class ChatTemplate:
    """A model's template, compiled once in each process, and its template for chats with tools."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], tool_source: str | None = None
    ) -> None:
        self.source = source
        self.tool_source = source if tool_source is None else tool_source
        self._environment = _environment()
        _checked(source, self._environment)
        names = _checked(self.tool_source, self._environment).find_all(jinja2.nodes.Name)
        self._compiled: dict[str, jinja2.Template] = {}
        self._special_tokens: dict[str, Any] = dict(special_tokens)
        self.shows_tools = any((name.name, name.ctx) == ("tools", "load") for name in names)
        self.shows_calls = "tool_calls" in self.tool_source

    def __reduce__(self) -> tuple[type[ChatTemplate], tuple[str, dict[str, Any], str]]:
        return ChatTemplate, (self.source, self._special_tokens, self.tool_source)

    @property
    def reserved(self) -> frozenset[str]:
        """Variables that a caller's arguments may not set."""
        return frozenset({"messages", "add_generation_prompt", *self._special_tokens})

    @property
    def written(self) -> str:
        """The sources of the templates, and the tokens that they may write by name."""
        return "\n".join((self.source, self.tool_source, *self._special_tokens.values()))

    def render(
        self, chat: Conversation, schemas: list[dict[str, Any]] | None = None, marks: Marks | None = None
    ) -> str:
        """Return the prompt's text, with `marks`; `schemas` are those of the chat's tools.

        Raises `TemplateRefused`, or `ChatRefused` naming a tool's schema that is wrong.
        """
        source = self.tool_source if chat.shown_tools else self.source
        template = self._template(source)
        options = chat.options
        keys = tuple(key for key in _REASONING_KEYS if key in source) or _REASONING_KEYS[:1]
        variables = {"tools": None, "documents": None, **options.arguments, **self._special_tokens}
        variables["add_generation_prompt"] = options.add_generation_prompt
        if chat.shown_tools:
            variables["tools"] = template_tools(chat.tools, chat.schemas() if schemas is None else schemas)

        def rendered(*, all_objects: bool) -> str:
            given = variables | {"messages": chat.template_messages(keys, all_objects=all_objects)}
            if marks is not None:
                given = marks.on(given, {"add_generation_prompt", *self._special_tokens})
            if options.continue_final_message:
                given["messages"][-1]["content"] += _CONTINUE_HERE
            with limited():
                try:
                    return template.render(given)
                except MemoryError:
                    raise
                except Exception as error:  # noqa: BLE001 -- templates may raise any
                    raise TemplateRefused(_reason(error, marks)) from None

        try:
            try:
                text = rendered(all_objects=False)
            except Exception as error:
                # Some templates write each argument by itself, and fail at those that are no object.
                if isinstance(error, OverLimit) or not chat.has_text_arguments:
                    raise
                text = rendered(all_objects=True)
        except (ChatRefused, TemplateRefused):
            raise
        except Exception as error:
            raise TemplateRefused(_reason(error, marks)) from error
        _check_length(text, chat)
        return _up_to_mark(text) if options.continue_final_message else text

    def compile(self) -> None:
        """Compile the templates, within limits. Raises `TemplateRefused`."""
        for source in (self.source, self.tool_source):
            self._template(source)

    def _template(self, source: str) -> jinja2.Template:
        """Return a compiled template. Compiling computes what is constant in it."""
        compiled = self._compiled.get(source)
        if compiled is None:
            try:
                with limited():
                    compiled = self._compiled[source] = self._environment.from_string(source)
            except Exception as error:
                raise TemplateRefused(str(error)) from error
        return compiled


def _checked(source: str, environment: jinja2.Environment) -> jinja2.nodes.Template:
    """Return a template's nodes. It is not compiled, since that computes what is constant in it.

    Raises `jinja2.TemplateSyntaxError`.
    """
    tree = environment.parse(source)
    for node in tree.find_all((jinja2.nodes.Filter, jinja2.nodes.Test)):
        is_filter = isinstance(node, jinja2.nodes.Filter)
        if node.name not in (environment.filters if is_filter else environment.tests):
            kind = "filter" if is_filter else "test"
            raise jinja2.TemplateAssertionError(f"No {kind} named {node.name!r}.", node.lineno)
    return tree


def _reason(error: Exception, marks: Marks | None) -> str:
    """Return what an error says, so that it can be sent: a template may write anything there.

    What a template raises is made a text within limits, since that happens only here.
    """
    text = str(error)[: 16 * _MAX_REASON]
    told = text if marks is None else marks.restored(text)
    return told[:_MAX_REASON].encode(errors="backslashreplace").decode()


def _check_length(text: str, chat: Conversation) -> None:
    """Raise `TemplateRefused` for a text that is out of all proportion to the chat."""
    if len(text) > _MAX_CHARACTERS and len(text) > _MAX_GROWTH * chat.num_bytes:
        raise TemplateRefused(f"it makes {len(text)} characters of the chat")


def _up_to_mark(text: str) -> str:
    """Return the text up to the end of the last message, without spaces that the template trimmed."""
    mark = text.rfind(_CONTINUE_HERE.strip())
    if mark < 0:
        raise TemplateRefused("the last message, which is to be continued, is missing from the rendered chat")
    is_whole = text.startswith(_CONTINUE_HERE, mark)
    return text[:mark] if is_whole else text[:mark].rstrip()


class OverLimit(Exception):
    """A template has reached a limit, which the message names."""


class _OutOfTime(BaseException):
    """No template can catch it."""


class _Limits:
    """The limits of this process. It has none until `start`."""

    def __init__(self) -> None:
        self._sizes = -1
        """The file with the process's size."""
        self._runs = False

    def start(self) -> None:
        self._sizes = os.open("/proc/self/statm", os.O_RDONLY)
        signal.signal(signal.SIGVTALRM, self._on_time)

    def _on_time(self, *_: object) -> None:
        if self._runs:
            raise _OutOfTime

    def set(self) -> None:
        if self._sizes < 0:
            return
        pages = int(os.pread(self._sizes, 64, 0).split(None, 1)[0])
        self._runs = True
        resource.setrlimit(resource.RLIMIT_AS, (pages * _PAGE_BYTES + LIMIT_BYTES, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
        signal.setitimer(signal.ITIMER_PROF, 2 * LIMIT_S)  # its signal ends the process

    def clear(self) -> None:
        self._runs = False
        if self._sizes >= 0:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


_limits = _Limits()


def limit_templates() -> None:
    """Set limits in this process wherever it is `limited`."""
    _limits.start()


@contextmanager
def limited() -> Iterator[None]:
    """Keep what runs inside to the limits, in a process that has some. Raises `OverLimit`."""
    try:
        _limits.set()
        yield
    except _OutOfTime:
        raise OverLimit(f"it takes more than {LIMIT_S:g} s of a processor") from None
    except MemoryError:
        raise OverLimit(f"it takes more than {LIMIT_BYTES >> 30} GiB of memory") from None
    finally:
        _limits.clear()
