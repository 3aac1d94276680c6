"""Whether a draft model drafts tokens of the model's own vocabulary, found out before either is loaded."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from engine.errors import DraftRefused
from engine.model.allow_list import Config
from model_output.text.model_files import FileUnusable, read_tokenizer


def check_pair(model: Path, config: Config, draft: Path, draft_config: Config) -> None:
    """Raise DraftRefused unless token ids mean the same to both models."""
    size, draft_size = config.get("vocab_size"), draft_config.get("vocab_size")
    if size != draft_size:
        raise DraftRefused(draft, "vocab_size", f"is {draft_size}", f"{size}, as that of {model.name}")
    try:
        tokenizer, draft_tokenizer = (read_tokenizer(each / "tokenizer.json") for each in (model, draft))
    except (FileNotFoundError, FileUnusable):
        return  # loading refuses a model without one
    _check_tokens(model, draft, _tokens(tokenizer), _tokens(draft_tokenizer), "the token")
    _check_tokens(model, draft, _special(tokenizer), _special(draft_tokenizer), "the special token")


def _tokens(tokenizer: Tokenizer) -> dict[int, str]:
    return {token_id: token for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items()}


def _special(tokenizer: Tokenizer) -> dict[int, str]:
    added = tokenizer.get_added_tokens_decoder().items()
    return {token_id: token.content for token_id, token in added if token.special}


def _check_tokens(
    model: Path, draft: Path, tokens: dict[int, str], others: dict[int, str], kind: str
) -> None:
    """Raise DraftRefused for the first token id that the tokenizers do not agree on."""
    for token_id in sorted(tokens.keys() | others.keys()):
        token, other = tokens.get(token_id), others.get(token_id)
        if token != other:
            found = "is missing" if other is None else f"is {other!r}"
            accepted = "none" if token is None else repr(token)
            raise DraftRefused(draft, f"{kind} {token_id}", found, f"{accepted}, as in {model.name}")
