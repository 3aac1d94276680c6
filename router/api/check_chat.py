"""Check that chats say what their model's template can show, and ask for tools that exist."""

from __future__ import annotations

import re

from chat_formats import ChatFormats
from router.errors import SET, Described, ValidationError
from router.preprocess.chat_template import ChatTemplate
from router.preprocess.conversation import ChatOptions, Conversation, Message, ToolMode

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


def check_chat(chat: Conversation, template: ChatTemplate, formats: ChatFormats) -> None:
    """Raise `ValidationError` for the first wrong field. JSON is checked later, beside the tokenizer."""
    if not chat.messages:
        raise ValidationError("chat.messages", [], "at least one message")
    _check_options(chat, template)
    for place, message in enumerate(chat.messages):
        _check_message(message, f"chat.messages[{place}]", template)
    if chat.tools:
        _check_tools(chat, template)
    _check_tool_choice(chat, formats)


def _check_options(chat: Conversation, template: ChatTemplate) -> None:
    options: ChatOptions = chat.options
    reserved = template.reserved | ({"tools"} if chat.tools else set())
    for name in options.arguments:
        if name in reserved:
            taken = ", ".join(sorted(reserved))
            raise ValidationError("chat.template_arguments", name, f"names other than {taken}")
    if options.add_generation_prompt and options.continue_final_message:
        raise ValidationError(
            "chat.continue_final_message", True, "true only without chat.add_generation_prompt"
        )


def _check_message(message: Message, where: str, template: ChatTemplate) -> None:
    if not message.role:
        raise ValidationError(f"{where}.role", message.role, "a role of the chat template, such as user")
    if message.role != "assistant":
        for name in ("tool_calls", "reasoning"):
            if getattr(message, name):
                raise ValidationError(f"{where}.{name}", SET, "unset, unless the role is assistant")
    if message.tool_calls and not template.shows_calls:
        raise ValidationError(
            f"{where}.tool_calls", SET, "unset: the model's chat template does not show them"
        )
    for place, call in enumerate(message.tool_calls):
        if not call.name:
            raise ValidationError(f"{where}.tool_calls[{place}].name", call.name, "the name of a tool")


def _check_tools(chat: Conversation, template: ChatTemplate) -> None:
    if not template.shows_tools:
        raise ValidationError("chat.tools", SET, "unset: the model's chat template does not show them")
    seen: set[str] = set()
    for place, tool in enumerate(chat.tools):
        where = f"chat.tools[{place}].name"
        if not _TOOL_NAME.fullmatch(tool.name):
            raise ValidationError(where, tool.name, "1 to 128 letters, digits, underscores and hyphens")
        if tool.name in seen:
            raise ValidationError(where, tool.name, "each name once")
        seen.add(tool.name)


def _check_tool_choice(chat: Conversation, formats: ChatFormats) -> None:
    has_choice = bool(chat.tool_mode) or chat.named_tool is not None
    for name, is_set in (
        ("chat.tool_choice", has_choice),
        ("chat.parallel_tool_calls", chat.parallel_tool_calls is not None),
    ):
        if is_set and not chat.tools:
            raise ValidationError(name, SET, "unset, without chat.tools")
    if chat.tool_mode not in (0, *ToolMode):
        accepted = ", ".join(f"TOOL_MODE_{mode.name}" for mode in ToolMode)
        raise ValidationError("chat.tool_choice.mode", chat.tool_mode, accepted)
    names = [tool.name for tool in chat.tools]
    if chat.named_tool is not None and chat.named_tool not in names:
        raise ValidationError("chat.tool_choice.name", chat.named_tool, f"one of {', '.join(names)}")
    if formats.tools:
        return
    unknown = "it is not known how this model writes calls"
    if chat.forces_a_call:
        raise ValidationError("chat.tool_choice", Described("a forced call"), f"auto or none: {unknown}")
    if chat.guides_calls:
        field = "chat.parallel_tool_calls"
        if chat.parallel_tool_calls is not False:
            place = next(place for place, tool in enumerate(chat.tools) if tool.strict)
            field = f"chat.tools[{place}].strict"
        raise ValidationError(field, SET, f"the default: {unknown}")
