"""The model card with samples, written from what was measured, so it cannot drift from the weights."""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tools.train_demo_model.checkpoint import SPECIAL_TOKENS
from tools.train_demo_model.recipe import LENGTHS

_TEMPLATE = Path(__file__).with_name("model_card.template.md")
_COMPLETION_PROMPTS = ("The garbage collector", "A decorator is a function that", "Return the number of")
_CHAT_QUESTIONS = ("What is the heapq module?", "What does os.path.exists() do?")
_SAMPLING: dict[str, Any] = {"temperature": 0.6, "top_p": 0.9, "top_k": 0, "max_new_tokens": 96}
_SEED = 7


def model_card(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, **figures: Any) -> str:
    """Return the card in Markdown; a placeholder of the template without a value is a KeyError."""
    return _TEMPLATE.read_text(encoding="utf-8").format(
        **figures,
        num_parameters=model.num_parameters(),
        config=model.config,
        uniform_nats=math.log(model.config.vocab_size),
        special_tokens=", ".join(f"`{token}`".replace("|", "\\|") for token in SPECIAL_TOKENS),
        lengths=", ".join(f"{rows} × {tokens} ({weight:.0%})" for rows, tokens, weight in LENGTHS),
        sampling=_SAMPLING,
        sample_seed=_SEED,
        completions="\n\n".join(_sample(model, tokenizer, prompt, prompt) for prompt in _COMPLETION_PROMPTS),
        answers="\n\n".join(_answer(model, tokenizer, question) for question in _CHAT_QUESTIONS),
    )


def _answer(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, question: str) -> str:
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    return _sample(model, tokenizer, question, str(prompt))


def _sample(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, title: str, prompt: str) -> str:
    """Return the continuation of a prompt in Markdown; the mark at its end means that it was cut."""
    torch.manual_seed(_SEED)
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
    output = model.generate(  # type: ignore[misc]  # its annotated `self` is no model class
        ids, attention_mask=torch.ones_like(ids), do_sample=True, **_SAMPLING
    )
    new_ids = output[0, ids.shape[1] :]
    text = str(tokenizer.decode(new_ids, skip_special_tokens=True)).strip()
    is_cut = int(new_ids[-1]) not in model.generation_config.eos_token_id
    return f"**{title}**\n\n```text\n{text}{' …' if is_cut else ''}\n```"
