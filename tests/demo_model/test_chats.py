"""Questions are made from the documentation's structure, answers are its own paragraphs."""

import random

from tools.train_demo_model.chats import Chat, chats_of
from tools.train_demo_model.restructured import Block, Kind

ANSWER = "Keep the thing on the shelf until it is asked for."


def questions(chats: list[Chat]) -> set[str]:
    return {exchange.question for chat in chats for exchange in chat.exchanges}


def answers(chats: list[Chat]) -> set[str]:
    return {exchange.answer for chat in chats for exchange in chat.exchanges}


def test_a_function_is_asked_about_by_its_bare_name() -> None:
    blocks = [
        Block(Kind.SIGNATURE, "PyObject *Shelf_Keep(PyObject *thing)", directive="c:function"),
        Block(Kind.PROSE, ANSWER),
    ]
    chats = chats_of(blocks, random.Random(0))
    assert answers(chats) == {ANSWER}
    assert all("Shelf_Keep()" in question for question in questions(chats))


def test_a_module_is_answered_with_its_synopsis_and_first_paragraph() -> None:
    blocks = [Block(Kind.MODULE, "shelf: Keep things."), Block(Kind.PROSE, "This module keeps things.")]
    assert answers(chats_of(blocks, random.Random(0))) == {"Keep things. This module keeps things."}


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
