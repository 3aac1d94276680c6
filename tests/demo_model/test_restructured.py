"""Reading the documentation's markup: what is text comes out as text, what is markup goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.train_demo_model.restructured import Block, Kind, clean_inline, parse_blocks

MODULE = """\
.. _shelf-label:

:mod:`shelf` --- Keep things
============================

.. module:: shelf
   :synopsis: Keep *things*.

.. sectionauthor:: Somebody <somebody@example.org>

.. index::
   single: shelf
   pair: thing; keep

The first line
and the second::

   >>> keep(1)

   >>> keep(2)

After the code.

.. function:: keep(thing)
              keep(thing, place)

   Keep *thing*.

   .. versionadded:: 3.1

      Also in a ``place``.
"""


def test_each_construct_becomes_its_kind_of_block() -> None:
    assert parse_blocks(MODULE) == [
        Block(Kind.HEADING, "shelf --- Keep things"),
        Block(Kind.MODULE, "shelf: Keep things."),
        Block(Kind.PROSE, "The first line and the second:"),
        Block(Kind.CODE, ">>> keep(1)"),
        Block(Kind.CODE, ">>> keep(2)"),
        Block(Kind.PROSE, "After the code."),
        Block(Kind.SIGNATURE, "keep(thing)", directive="function"),
        Block(Kind.SIGNATURE, "keep(thing, place)", directive="function"),
        Block(Kind.PROSE, "Keep thing."),
        Block(Kind.PROSE, "New in version 3.1:"),
        Block(Kind.PROSE, "Also in a `place`."),
    ]


def test_glossary_entries_are_terms_with_their_definition() -> None:
    source = ".. glossary::\n\n   shelf\n      A place to keep things."
    assert parse_blocks(source) == [
        Block(Kind.TERM, "shelf"),
        Block(Kind.PROSE, "A place to keep things."),
    ]


def test_objects_listed_without_empty_lines_between_them_stay_apart() -> None:
    source = ".. function:: keep(thing)\n.. function:: drop(thing)\n\n   Keep or drop."
    assert parse_blocks(source) == [
        Block(Kind.SIGNATURE, "keep(thing)", directive="function"),
        Block(Kind.SIGNATURE, "drop(thing)", directive="function"),
        Block(Kind.PROSE, "Keep or drop."),
    ]


def test_code_keeps_its_inner_indentation() -> None:
    source = "Thus::\n\n   def f():\n       return 1\n"
    assert parse_blocks(source)[1] == Block(Kind.CODE, "def f():\n    return 1")


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        (":func:`~os.path.join`", "os.path.join"),
        (":ref:`the section <label>`", "the section"),
        ("``x = 1``", "`x = 1`"),
        ("*key* and **value**", "key and value"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("`Heapsort <https://example.org>`_", "Heapsort"),
    ],
)
def test_inline_markup_is_removed(markup: str, text: str) -> None:
    assert clean_inline(markup) == text


@given(st.text(alphabet="ab .:`*|=-\n\t>", max_size=300))
def test_no_text_breaks_the_reader_or_yields_empty_prose(source: str) -> None:
    assert all(block.text for block in parse_blocks(source) if block.kind is Kind.PROSE)
