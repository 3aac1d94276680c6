"""Control tokens of a model, and the marks that stand for their texts while a chat template runs.

A template writes control tokens as text, between texts of the caller. To tell the two apart afterwards, each
text of a control token that the caller wrote is replaced by a mark before the template runs: digits, which
templates trim, compare, fold and turn into JSON without changing them. After that, the control tokens that
are left are the template's own. Marks become what they stand for, and `PlainTokenizer` reads that as text: in
it, control tokens have secret names.

Conversations without such texts take none of this way, except for one search.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Container, Iterable, Mapping
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Tokenizer

from model_output.formats import REASONING_FORMATS, TOOL_FORMATS, ChatFormats
from router.request import ChatRefused, Conversation, InContent

_TAG = re.compile(r"<.+>|\[.+\]")
_PIPED_TAG = re.compile(r"<[|｜].+[|｜]>")
_WORD = re.compile(r"\w+")
_NAME_IN_TAG = re.compile(r"[<\[]/?(.+)[>\]]")
_SPACE_IN_JSON = r"(?:\s|\\[bfnrt])*"
_ESCAPES = ("\\u", "\\/")
"""Beginnings of escapes by which JSON can spell any text."""
_MARK_DIGITS = 6
_CONTRACT_NAMES = {"reasoning_content": "reasoning", "thinking": "reasoning"}
"""Fields of a message by their names in templates."""


class ControlTokens:
    """The control tokens of one model: those that no text of a caller may become.

    These are the special tokens of the tokenizer, and added tokens that are tags of the chat template, which
    some tokenizers do not call special. In the content of an assistant, the tags of its own reasoning and
    calls stay tokens: clients send them back, and templates look for them.
    """

    def __init__(
        self, tokenizer: Tokenizer, template_source: str, formats: ChatFormats, in_content: InContent
    ) -> None:
        self.tokenizer = tokenizer
        self.refuses = in_content is InContent.REFUSE
        tokens = [
            token
            for token in tokenizer.get_added_tokens_decoder().values()
            if _is_control(token, template_source) and in_content is not InContent.KEEP
        ]
        own = _own_tags(tokens, formats)
        self.anywhere = _pattern(tokens)
        self.of_assistant = _pattern([token for token in tokens if token.content not in own])
        secret = str(secrets.randbelow(9 * 10**29) + 10**29)
        self.secret = secret
        self.names = {token.content: f"{secret}{place:06}" for place, token in enumerate(tokens)}
        self.mark = str(secrets.randbelow(9 * 10**11) + 10**11)
        self.in_prompt = re.compile(
            rf"{self.mark}(?P<mark>\d{{{_MARK_DIGITS}}})|{self.anywhere.pattern}", re.DOTALL
        )
        self.beginnings = frozenset(name[:size] for name in self.names for size in range(1, len(name)))
        self.longest = max(map(len, self.names), default=0)
        self._firsts = frozenset(name[:1] for name in self.names)
        self._signs = (*{name[:2] for name in self.names}, *_ESCAPES) if tokens else ()
        inner = "|".join(map(re.escape, _inner(self.names, template_source))) or r"(?!)"
        self.inner = re.compile(rf"\s*(?:{inner})(?:\s*\Z|[>\]])")
        """Beginnings of texts that become control tokens if a template writes brackets around them."""
        self._quoted_inner = re.compile(rf'"{_SPACE_IN_JSON}(?:{inner})(?:{_SPACE_IN_JSON}"|[>\]])')
        self.folded = _folded(tokenizer, tokens)
        """Control tokens in normalised texts, if the normalizer makes them of other spellings too."""

    @cached_property
    def plain(self) -> PlainTokenizer:
        return PlainTokenizer(self.tokenizer, self.names)

    def marks_for(self, chat: Conversation) -> Marks | None:
        """Return marks for a conversation; None if it spells no control token."""
        if not self.names:
            return None
        if self.folded is not None or _has_text(chat.options.arguments) or self._may_spell(chat.texts()):
            return Marks(self)
        return None

    def _may_spell(self, texts: Iterable[str]) -> bool:
        """Return whether a text may have (part of) the text of a control token. Few others do."""
        signs, firsts = self._signs, self._firsts
        for text in texts:
            if text:
                for sign in signs:
                    if sign in text:
                        return True
                if text.rstrip()[-1:] in firsts:
                    return True
                if self.inner.match(text) or self._quoted_inner.search(text):
                    return True
        return False


class Marks:
    """The marks in one conversation."""

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        self._texts: list[str] = []
        """The text of each mark; an empty one only parts what stands before it from what follows."""
        self._places: dict[str, int] = {}
        self._where = ""

    def on(self, variables: Mapping[str, Any], own: Container[str]) -> dict[str, Any]:
        """Return the variables of a template with marks, except those of the template's `own`.

        Raises `ChatRefused` if control tokens are refused.
        """
        marked = dict(variables)
        for name in [name for name in variables if name not in own]:
            self._where = "chat.template_arguments"
            if name == "messages":
                marked[name] = [self._message(turn, place) for place, turn in enumerate(variables[name])]
            elif name == "tools" and isinstance(variables[name], list):
                marked[name] = [self._tool(tool, place) for place, tool in enumerate(variables[name])]
            else:
                marked[name] = self._value(variables[name])
        return marked

    def content(self, role: str, content: str) -> str:
        """Return the content of a message with marks."""
        control = self._control
        return self._text(content, control.of_assistant if role == "assistant" else control.anywhere)

    def restored(self, prompt: str) -> str:
        """Return a rendered prompt with the texts that the caller wrote."""
        texts = self._texts
        return self._control.in_prompt.sub(lambda found: _text_of(found, texts), prompt)

    def encode(self, prompt: str) -> list[int]:
        """Return the tokens of a rendered prompt, whose control tokens are the template's."""
        control, texts = self._control, self._texts
        plain = self.restored(prompt)
        own = [found[0] for found in control.in_prompt.finditer(prompt) if found["mark"] is None]
        if not texts or (not any(texts) and own == control.anywhere.findall(plain)):
            return ids_of(control.tokenizer, plain)
        assert control.secret not in plain, "nobody knows it"
        named = control.in_prompt.sub(
            lambda found: _text_of(found, texts) if found["mark"] else control.names[found[0]], prompt
        )
        return control.plain.encode(named)

    def _message(self, turn: Mapping[str, Any], place: int) -> dict[str, Any]:
        marked: dict[str, Any] = {}
        for key, value in turn.items():
            self._where = f"chat.messages[{place}].{_CONTRACT_NAMES.get(key, key)}"
            match key:
                case "role":
                    marked[key] = self._role(value)
                case "content":
                    marked[key] = self.content(turn["role"], value)
                case _:
                    marked[key] = self._value(value)
        return marked

    def _role(self, role: str) -> str:
        """Return a role with marks. Templates make control tokens of roles, so all but words are parted."""
        if _WORD.fullmatch(role):
            return role
        parting = self._mark_of("")
        return f"{parting}{self._text(role, self._control.anywhere)}{parting}"

    def _tool(self, tool: object, place: int) -> Any:
        self._where = f"chat.tools[{place}]"
        return self._value(tool)

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            marked = self._text(value, self._control.anywhere)
            # Some templates write names of parameters as tags.
            return self._mark_of("") + marked if self._control.inner.match(value) else marked
        if isinstance(value, Mapping):
            return {self._value(key): self._value(below) for key, below in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(below) for below in value]
        return value

    def _text(self, text: str, spelled: re.Pattern[str]) -> str:
        control = self._control
        marked = spelled.sub(lambda found: self._mark_of(self._taken(found[0])), text)
        if control.folded is not None and control.folded.search(_normalised(control.tokenizer, marked)):
            # The tokenizer finds a control token in another spelling.
            inner = text.strip()
            return text.replace(inner, self._mark_of(self._taken(inner)), 1)
        end = marked.rstrip()
        for size in range(1, min(control.longest, len(end) + 1)):
            if end[-size:] in control.beginnings:
                return f"{end}{self._mark_of('')}{marked[len(end) :]}"
        return marked

    def _taken(self, text: str) -> str:
        if self._control.refuses:
            raise ChatRefused(self._where, text, "text without the model's control tokens")
        return text

    def _mark_of(self, text: str) -> str:
        place = self._places.setdefault(text, len(self._texts))
        if place == len(self._texts):
            self._texts.append(text)
        return f"{self._control.mark}{place:0{_MARK_DIGITS}}"


def _text_of(found: re.Match[str], texts: list[str]) -> str:
    """Return the text of a mark; a control token of the template, or digits that are no mark, as they are."""
    mark = found["mark"]
    return found[0] if mark is None or int(mark) >= len(texts) else texts[int(mark)]


def _is_control(token: AddedToken, template_source: str) -> bool:
    text = token.content
    if not text.strip():
        return False
    is_tag = bool(_PIPED_TAG.fullmatch(text)) or (bool(_TAG.fullmatch(text)) and text in template_source)
    return token.special or is_tag


def _own_tags(tokens: Iterable[AddedToken], formats: ChatFormats) -> frozenset[str]:
    """Return what an assistant's content may have: tags of reasoning, and those of calls if not special."""
    reasoning, tools = REASONING_FORMATS.get(formats.reasoning), TOOL_FORMATS.get(formats.tools)
    thoughts = frozenset(() if reasoning is None else (*reasoning.opens, *reasoning.closes))
    calls = frozenset(() if tools is None else (*tools.opens, *tools.closes))
    return frozenset(
        token.content
        for token in tokens
        if token.content in thoughts or (token.content in calls and not token.special)
    )


def _inner(names: Iterable[str], template_source: str) -> frozenset[str]:
    """Return what stands between the brackets of tags, and after the slash of closing ones.

    Words that the template looks for itself are left out: it would not find them with a mark.
    """
    inner: set[str] = set()
    for name in names:
        if found := _NAME_IN_TAG.fullmatch(name):
            inner |= {found[1], name[1:-1]}
    return frozenset(
        text
        for text in inner
        if not (_WORD.fullmatch(text) and re.search(rf"""\.{text}\b|(['"]){text}\1""", template_source))
    )


def _pattern(tokens: Iterable[AddedToken]) -> re.Pattern[str]:
    """Return a pattern of the texts of tokens, the longest first. Without tokens it matches nothing."""
    texts = [
        rf"(?<!\w){re.escape(token.content)}(?!\w)" if token.single_word else re.escape(token.content)
        for token in sorted(tokens, key=lambda token: -len(token.content))
    ]
    return re.compile("|".join(texts) or r"(?!)")


def _normalised(tokenizer: Tokenizer, text: str) -> str:
    normalizer = tokenizer.normalizer
    return text if normalizer is None else str(normalizer.normalize_str(text))


def _folded(tokenizer: Tokenizer, tokens: Iterable[AddedToken]) -> re.Pattern[str] | None:
    """Return the pattern of control tokens in normalised texts; None if no other spelling becomes one."""
    if tokenizer.normalizer is None:
        return None
    forms = {token.content: _normalised(tokenizer, token.content).strip(" ▁") for token in tokens}
    for name, form in forms.items():
        wide = "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in name)
        for spelling in {name.upper(), name.lower(), name.title(), wide} - {name}:
            normalised = _normalised(tokenizer, spelling)
            if name in normalised or (form and form in normalised):
                return re.compile("|".join(re.escape(text) for text in {*forms, *forms.values()} if text))
    return None


def _has_text(value: object) -> bool:
    """Return whether a template's arguments have texts, other than words such as options have."""
    if isinstance(value, str):
        return not _WORD.fullmatch(value)
    if isinstance(value, Mapping):
        return any(map(_has_text, value)) or any(map(_has_text, value.values()))
    return isinstance(value, list) and any(map(_has_text, value))


def ids_of(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    """Return the ids of a text, without its tokens' places in it, which take two thirds of the time."""
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return list(encoding.ids)


class PlainTokenizer:
    """A copy of `tokenizer` in which tokens have the names of `names`.

    A tokenizer finds a control token wherever its text stands. Here the tokens have secret names instead, in
    the list of added tokens as well as in the vocabulary and in the merges. So nothing that a caller writes
    becomes a control token, and a text without any is split as by the tokenizer itself: prefixes,
    normalisation and merges reach across the places where control tokens are spelled.
    """

    def __init__(self, tokenizer: Tokenizer, names: Mapping[str, str]) -> None:
        stated = json.loads(tokenizer.to_str())
        for token in stated["added_tokens"]:
            token["content"] = names.get(token["content"], token["content"])
        stated["model"] = _renamed(stated["model"], names)
        self._tokenizer = Tokenizer.from_str(json.dumps(stated))
        self._token_ids: dict[int, int] = {}
        """The id of each added token in `tokenizer`, by its id here."""
        for token_id, token in tokenizer.get_added_tokens_decoder().items():
            own_id = self._tokenizer.token_to_id(names.get(token.content, token.content))
            assert own_id is not None, f"{token.content!r} is an added token of the copy too"
            if own_id != token_id:
                self._token_ids[own_id] = token_id

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text that has control tokens by their names here."""
        ids = ids_of(self._tokenizer, text)
        if not self._token_ids:
            return ids
        return [self._token_ids.get(token_id, token_id) for token_id in ids]


def _renamed(model: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a model that has pieces by other names, and no merges that make or use these."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        changed: dict[str, Any] = {
            "vocab": {names.get(piece, piece): place for piece, place in vocabulary.items()}
        }
    else:  # Unigram has its pieces in the order of their ids
        changed = {"vocab": [[names.get(piece, piece), score] for piece, score in vocabulary]}
    if "merges" in model:
        changed["merges"] = [merge for merge in model["merges"] if not _touches(merge, names)]
    if model.get("unk_token") in names:
        changed["unk_token"] = names[model["unk_token"]]
    return model | changed


def _touches(merge: str | list[str], names: Mapping[str, str]) -> bool:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first in names or second in names or first + second in names
