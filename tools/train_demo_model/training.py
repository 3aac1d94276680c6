"""The training loop, the rows of its steps, and the held-out loss."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.train_demo_model.checkpoint import BOS, end_token_ids
from tools.train_demo_model.recipe import LENGTHS, Recipe

_EVAL_WINDOW = 256
_PROGRESS_EVERY = 50
_CLIP_NORM = 1.0

Tokens = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class TrainingTokens:
    """The encoded text: a stream of documents, a stream of chats, and the starts of the chats in it."""

    documents: Tokens
    chats: Tokens
    chat_starts: NDArray[np.int64]


def encode_all(tokenizer: PreTrainedTokenizerFast, documents: list[str], chats: list[str]) -> TrainingTokens:
    """Encode both streams; special tokens inside the text become their ids."""
    document_tokens, chat_tokens = (
        np.concatenate([np.array(encode(tokenizer, text), dtype=np.uint16) for text in texts])
        for texts in (documents, chats)
    )
    # Every chat begins with this token, and has it nowhere else.
    starts = np.flatnonzero(chat_tokens == tokenizer.convert_tokens_to_ids(BOS))
    return TrainingTokens(document_tokens, chat_tokens, starts)


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return a text's tokens by the Rust tokenizer itself: the wrapper warns about long texts."""
    ids: list[int] = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def build_model(shape: dict[str, Any], tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Return an untrained Llama of this shape, in fp32, with weights drawn from `seed`."""
    torch.manual_seed(seed)
    config = LlamaConfig(**shape, tie_word_embeddings=True, **end_token_ids(tokenizer))
    return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]  # transformers left it unannotated


def train(model: LlamaForCausalLM, tokens: TrainingTokens, recipe: Recipe) -> None:
    """Train `model` in place with AdamW under bf16 autocast, printing loss and time left."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.peak_lr, betas=(0.9, 0.95), fused=True)
    model.train()
    started, losses = time.perf_counter(), []
    for step in range(recipe.num_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe)
        rows = batch_for_step(tokens, recipe, step)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        done = step + 1
        if done % _PROGRESS_EVERY == 0 or done == recipe.num_steps:
            minutes = (time.perf_counter() - started) / done * (recipe.num_steps - done) / 60
            mean = sum(losses) / len(losses)
            print(f"step {done}/{recipe.num_steps}  loss {mean:.3f}  {minutes:.1f} minutes left", flush=True)
            losses.clear()
    model.train(mode=False)


def learning_rate(step: int, recipe: Recipe) -> float:
    """Return the learning rate: linear warm-up to the peak, then a half cosine down to a hundredth of it."""
    if step < recipe.warmup_steps:
        return recipe.peak_lr * (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / (recipe.num_steps - recipe.warmup_steps)
    return recipe.peak_lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def batch_for_step(tokens: TrainingTokens, recipe: Recipe, step: int) -> torch.Tensor:
    """The rows [rows, length] of one step, int64: a function of seed and step only, so runs repeat exactly.

    Document rows start anywhere, chat rows at the start of a chat.
    """
    rng = np.random.default_rng((recipe.seed, step))
    weights = np.array([weight for _, _, weight in LENGTHS])
    num_rows, length, _ = LENGTHS[int(rng.choice(len(LENGTHS), p=weights / weights.sum()))]
    rows = [_row(tokens, length, rng, recipe.chat_share) for _ in range(num_rows)]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def _row(tokens: TrainingTokens, length: int, rng: np.random.Generator, chat_share: float) -> Tokens:
    if rng.random() < chat_share:
        usable = int(np.searchsorted(tokens.chat_starts, len(tokens.chats) - length))
        start = int(tokens.chat_starts[rng.integers(usable)])
        return tokens.chats[start : start + length]
    start = int(rng.integers(len(tokens.documents) - length))
    return tokens.documents[start : start + length]


@dataclass(frozen=True, slots=True)
class HeldOutLoss:
    """Loss on text never trained on; bits per byte does not depend on the tokenizer."""

    nats_per_token: float
    bits_per_byte: float
    num_tokens: int


@torch.inference_mode()
def held_out_loss(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, documents: Sequence[str]
) -> HeldOutLoss:
    """Return the mean loss over `documents` in windows of 256 tokens, without each document's first token.

    Windows overlap by one token, so the contexts are short and the figure is pessimistic.
    """
    nats, num_tokens, num_bytes = 0.0, 0, 0
    for document in documents:
        num_bytes += len(document.encode())
        ids = torch.tensor(encode(tokenizer, document))
        for window in (ids[i : i + _EVAL_WINDOW + 1] for i in range(0, len(ids) - 1, _EVAL_WINDOW)):
            logits = model(input_ids=window[None, :-1]).logits[0].float()
            nats += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
            num_tokens += len(window) - 1
    return HeldOutLoss(nats / num_tokens, nats / math.log(2) / num_bytes, num_tokens)
