"""Questions and answers made mechanically from the documentation's own structure.

A heading, signature, module or glossary term that is followed by a paragraph becomes a question; that
paragraph is the answer. No sentence is invented but the questions.
"""

import random
import re
from collections.abc import Iterator, Sequence

from tools.train_demo_model.restructured import Block, Kind

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You answer questions about Python.",
    "Answer briefly, from the Python documentation.",
)
_WORDINGS = 2  # of each question, so that the wording is not what the answer hangs on
_MIN_ANSWER_CHARS, _MAX_ANSWER_CHARS = 30, 700

_ABOUT_NAME = ("What is {}?", "What does {} mean?", "Tell me about {}.")
_ABOUT_CALL = ("What does {} do?", "What is {} for?", "Explain {}.", "How do I use {}?", "Tell me about {}.")
_ABOUT_KIND = {
    Kind.MODULE: (
        "What is the {} module?", "What does the {} module do?", "What is {}?",
        "Tell me about the {} module.", "What is the {} module for?",
    ),
    Kind.TERM: ("What is {article} {}?", "What is {}?", "Explain {}.", "Define {}.", "What does {} mean?"),
    Kind.HEADING: (
        "What is {}?", "Tell me about {}.", "Explain {}.", "What does the documentation say about {}?",
    ),
}  # fmt: skip
_ABOUT_DIRECTIVE = {
    "class": ("What is the class {}?", "What is {}?", "Explain the class {}.", "Tell me about {}."),
    "exception": ("When is {} raised?", "What is {}?", "What does {} mean?"),
}
_CALLS = {
    "function", "method", "classmethod", "staticmethod", "decorator", "c:function", "c:macro",
    "coroutinefunction", "awaitablefunction", "coroutinemethod", "awaitablemethod", "abstractmethod",
    "decoratormethod",
}  # fmt: skip

Message = tuple[str, str]
"""A role, and what it says."""


def chats_of(blocks: Sequence[Block], rng: random.Random) -> list[list[Message]]:
    """Return the conversations of a file: most have one exchange, some two or three on related subjects.

    Some open with a system prompt.
    """
    exchanges = list(_exchanges(blocks, rng))
    chats: list[list[Message]] = []
    while exchanges:
        turns = rng.choices((1, 2, 3), weights=(0.7, 0.2, 0.1))[0]
        chat = [("system", rng.choice(SYSTEM_PROMPTS))] if rng.random() < 0.15 else []
        for question, answer in exchanges[:turns]:
            chat += [("user", question), ("assistant", answer)]
        chats.append(chat)
        del exchanges[:turns]
    return chats


def _exchanges(blocks: Sequence[Block], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield questions and their answers."""
    usable = [(subject, answer) for subject, answer in _subjects(blocks) if _is_usable(answer)]
    wordings = [rng.sample(_templates(subject), k=_WORDINGS) for subject, _ in usable]
    # All first wordings before all second ones: no conversation asks the same thing twice in a row.
    for wording in range(_WORDINGS):
        for (subject, answer), templates in zip(usable, wordings, strict=True):
            yield _ask(templates[wording], subject), answer


def _is_usable(answer: str) -> bool:
    """Return True if a paragraph reads as an answer: a whole sentence or more, and no field list."""
    return (
        _MIN_ANSWER_CHARS <= len(answer) <= _MAX_ANSWER_CHARS
        and answer[-1] in ".!?)`"
        and not answer.startswith((":", "|", "+"))
    )


def _subjects(blocks: Sequence[Block]) -> Iterator[tuple[Block, str]]:
    """Yield each subject with the paragraph after it; a module's answer opens with its synopsis."""
    for position, block in enumerate(blocks):
        if block.kind is Kind.MODULE:
            yield block, f"{block.text.partition(': ')[2]} {_module_prose(blocks, position)}".strip()
        elif block.kind is not Kind.PROSE and block.kind is not Kind.CODE:
            following = (b for b in blocks[position + 1 : position + 4] if b.kind is not Kind.SIGNATURE)
            follower = next(following, None)
            yield block, _answer(follower.text) if follower and follower.kind is Kind.PROSE else ""


def _answer(prose: str) -> str:
    if prose.startswith(("Source code:", "Note:", "New in version", "Changed in version", "- ", "See also")):
        return ""
    return prose[:-1] + "." if prose.endswith(":") else prose


def _module_prose(blocks: Sequence[Block], position: int) -> str:
    for block in blocks[position + 1 : position + 5]:
        if block.kind is Kind.PROSE and block.text.startswith(("This module", "The ", "This package")):
            return _answer(block.text)
    return ""


def _templates(subject: Block) -> tuple[str, ...]:
    if subject.directive in _CALLS:
        return _ABOUT_CALL
    return _ABOUT_KIND.get(subject.kind) or _ABOUT_DIRECTIVE.get(subject.directive, _ABOUT_NAME)


def _ask(template: str, subject: Block) -> str:
    name = subject.text
    if subject.kind is Kind.MODULE:
        name = name.partition(":")[0]
    elif subject.kind is Kind.HEADING:
        name = name.rpartition("---")[2].strip().rstrip("?.:")
    elif subject.kind is Kind.SIGNATURE:
        # The bare name of a signature: `int PyList_Size(PyObject *list)` is `PyList_Size`.
        name = re.split(r"[\s*]", name.partition("(")[0].strip())[-1] or name
        name += "()" if subject.directive in _CALLS else ""
    return template.format(name, article="an" if name[:1].lower() in "aeiou" else "a")
