"""The training loop and the held-out loss."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.train_demo_model.config import ModelShape, Recipe
from tools.train_demo_model.dataset import TrainingTokens, batch_for_step
from tools.train_demo_model.tokenizer import END, EOS

_EVAL_WINDOW = 256
_PROGRESS_EVERY = 50
_CLIP_NORM = 1.0


@dataclass(frozen=True, slots=True)
class HeldOutLoss:
    """Loss on text never trained on; bits per byte does not depend on the tokenizer."""

    nats_per_token: float
    bits_per_byte: float
    num_tokens: int


def build_model(shape: ModelShape, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Return an untrained Llama of this shape, in fp32, with weights drawn from `seed`."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.convert_tokens_to_ids([EOS, END]),
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]  # transformers left it unannotated


def learning_rate(step: int, recipe: Recipe) -> float:
    """Return the learning rate: linear warm-up to the peak, then a half cosine down to a hundredth of it."""
    if step < recipe.warmup_steps:
        return recipe.peak_lr * (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / (recipe.num_steps - recipe.warmup_steps)
    return recipe.peak_lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def train(model: LlamaForCausalLM, tokens: TrainingTokens, recipe: Recipe) -> None:
    """Train `model` in place with AdamW under bf16 autocast, printing loss, speed and time left."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.peak_lr, betas=(0.9, 0.95), fused=True)
    model.train()
    progress = _Progress(recipe.num_steps)
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
        progress.report(step, loss.item(), rows.numel())
    model.train(mode=False)


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
        ids = torch.tensor(tokenizer.backend_tokenizer.encode(document, add_special_tokens=False).ids)
        for window in (ids[i : i + _EVAL_WINDOW + 1] for i in range(0, len(ids) - 1, _EVAL_WINDOW)):
            logits = model(input_ids=window[None, :-1]).logits[0].float()
            nats += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
            num_tokens += len(window) - 1
    return HeldOutLoss(nats / num_tokens, nats / math.log(2) / num_bytes, num_tokens)


class _Progress:
    """Prints the mean loss, tokens per second and time left at regular steps."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._start = time.perf_counter()
        self._losses: list[float] = []
        self._num_tokens = 0

    def report(self, step: int, loss: float, num_tokens: int) -> None:
        self._losses.append(loss)
        self._num_tokens += num_tokens
        if (step + 1) % _PROGRESS_EVERY and step + 1 < self._num_steps:
            return
        elapsed_s = time.perf_counter() - self._start
        eta_s = elapsed_s / (step + 1) * (self._num_steps - step - 1)
        print(
            f"step {step + 1}/{self._num_steps}  loss {sum(self._losses) / len(self._losses):.3f}"
            f"  {self._num_tokens / elapsed_s:.0f} tokens/s  {eta_s / 60:.1f} minutes left",
            flush=True,
        )
        self._losses.clear()
