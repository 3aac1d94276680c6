"""Questions are made from the documentation's structure, answers are its own paragraphs."""

import random

from tools.train_demo_model.chats import Message, chats_of
from tools.train_demo_model.restructured import Block, Kind

ANSWER = "Keep the thing on the shelf until it is asked for."


def said_by(role: str, chats: list[list[Message]]) -> set[str]:
    return {said for chat in chats for speaker, said in chat if speaker == role}


def test_a_function_is_asked_about_by_its_bare_name() -> None:
    blocks = [
        Block(Kind.SIGNATURE, "PyObject *Shelf_Keep(PyObject *thing)", directive="c:function"),
        Block(Kind.PROSE, ANSWER),
    ]
    chats = chats_of(blocks, random.Random(0))
    assert said_by("assistant", chats) == {ANSWER}
    assert all("Shelf_Keep()" in question for question in said_by("user", chats))


def test_a_module_is_answered_with_its_synopsis_and_first_paragraph() -> None:
    blocks = [Block(Kind.MODULE, "shelf: Keep things."), Block(Kind.PROSE, "This module keeps things.")]
    assert said_by("assistant", chats_of(blocks, random.Random(0))) == {
        "Keep things. This module keeps things."
    }


def test_what_is_no_explanation_is_no_answer() -> None:
    heading = Block(Kind.HEADING, "Shelves")
    for text in (
        "Too short.",
        "Note: a remark that is long enough to be taken.",
        ":param thing: what is kept here.",
    ):
        assert chats_of([heading, Block(Kind.PROSE, text)], random.Random(0)) == []


def test_a_heading_without_a_paragraph_is_not_asked_about() -> None:
    blocks = [Block(Kind.HEADING, "Shelves"), Block(Kind.CODE, "keep(1)"), Block(Kind.PROSE, ANSWER)]
    assert chats_of(blocks, random.Random(0)) == []


def test_the_same_seed_makes_the_same_chats() -> None:
    headings = [Block(Kind.HEADING, f"Shelf {n}") for n in range(9)]
    blocks = [block for heading in headings for block in (heading, Block(Kind.PROSE, ANSWER))]
    assert chats_of(blocks, random.Random(1)) == chats_of(blocks, random.Random(1))
    assert chats_of(blocks, random.Random(1)) != chats_of(blocks, random.Random(2))
