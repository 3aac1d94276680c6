"""The prompts of the demo, whose model was trained only on Python's documentation."""

from __future__ import annotations

from dataclasses import dataclass

from baton.types import ChatMessage, Prompt


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    title: str
    prompt: Prompt
    shown: str
    """The text printed before the output: a completion continues its prompt."""


def _completion(text: str) -> DemoPrompt:
    return DemoPrompt(title=text[:34].strip() + " …", prompt=text, shown=text)


def _question(text: str) -> DemoPrompt:
    return DemoPrompt(title=text, prompt=[ChatMessage("user", text)], shown="")


PROMPTS = (
    _completion("The list is"),
    _completion("This module provides a simple way to"),
    _completion("If the file cannot be opened, the function"),
    _completion("A dictionary can be created by"),
    _question("What is a generator?"),
    _question("How do I open a file?"),
)
