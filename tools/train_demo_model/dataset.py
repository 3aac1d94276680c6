"""Files to token streams: documents and chats, and the rows a training step takes from them."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from tools.train_demo_model.chats import Chat, chats_of
from tools.train_demo_model.config import LENGTHS, Recipe
from tools.train_demo_model.corpus import SourceFile
from tools.train_demo_model.restructured import Block, Kind, parse_blocks
from tools.train_demo_model.tokenizer import ASSISTANT, BOS, END, EOS, SYSTEM, USER

Tokens = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class TrainingText:
    """The readable documents and the conversations made from them, as text."""

    documents: tuple[str, ...]
    chats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrainingTokens:
    """The encoded text: a stream of documents, a stream of chats, and the starts of the chats in it."""

    documents: Tokens
    chats: Tokens
    chat_starts: NDArray[np.int64]


def readable_text(blocks: Iterable[Block]) -> str:
    """Return a document as text: headings marked with '# ', blocks separated by an empty line."""
    return "\n\n".join(f"# {b.text}" if b.kind is Kind.HEADING else b.text for b in blocks)


def training_text(files: Sequence[SourceFile], seed: int) -> TrainingText:
    """Parse `files` into documents and, in a seeded shuffle, chats."""
    rng = random.Random(seed)
    parsed = [parse_blocks(file.text) for file in files]
    chats = [_chat_text(chat) for blocks in parsed for chat in chats_of(blocks, rng)]
    rng.shuffle(chats)
    return TrainingText(
        documents=tuple(f"{BOS}{readable_text(blocks)}{EOS}" for blocks in parsed),
        chats=tuple(chats),
    )


def encode_training(text: TrainingText, tokenizer: PreTrainedTokenizerFast) -> TrainingTokens:
    """Encode both streams; special tokens inside the text become their ids."""
    chats = [_encode(tokenizer, chat) for chat in text.chats]
    lengths = np.array([len(chat) for chat in chats], dtype=np.int64)
    return TrainingTokens(
        documents=np.concatenate([_encode(tokenizer, document) for document in text.documents]),
        chats=np.concatenate(chats),
        chat_starts=np.cumsum(lengths) - lengths,
    )


def batch_for_step(tokens: TrainingTokens, recipe: Recipe, step: int) -> torch.Tensor:
    """The rows [rows, length] of one step, int64: a function of seed and step only, so runs repeat exactly.

    Document rows start anywhere, chat rows at the start of a chat.
    """
    rng = np.random.default_rng((recipe.seed, step))
    weights = np.array([share.weight for share in LENGTHS])
    share = LENGTHS[int(rng.choice(len(LENGTHS), p=weights / weights.sum()))]
    rows = [_row(tokens, share.tokens, rng, recipe.chat_share) for _ in range(share.rows)]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def _row(tokens: TrainingTokens, length: int, rng: np.random.Generator, chat_share: float) -> Tokens:
    if rng.random() < chat_share:
        usable = int(np.searchsorted(tokens.chat_starts, len(tokens.chats) - length))
        start = int(tokens.chat_starts[rng.integers(usable)])
        return tokens.chats[start : start + length]
    start = int(rng.integers(len(tokens.documents) - length))
    return tokens.documents[start : start + length]


def _chat_text(chat: Chat) -> str:
    """Return the conversation as the chat template renders it."""
    system = f"{SYSTEM}{chat.system}{END}" if chat.system else ""
    turns = "".join(f"{USER}{e.question}{END}{ASSISTANT}{e.answer}{END}" for e in chat.exchanges)
    return f"{BOS}{system}{turns}"


def _encode(tokenizer: PreTrainedTokenizerFast, text: str) -> Tokens:
    # The Rust tokenizer itself: the wrapper warns about texts longer than the model's positions.
    return np.array(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint16)
