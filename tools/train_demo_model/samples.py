"""Samples of the finished checkpoint for its model card."""

from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

COMPLETION_PROMPTS = ("The garbage collector", "A decorator is a function that", "Return the number of")
CHAT_QUESTIONS = ("What is the heapq module?", "What does os.path.exists() do?")
TEMPERATURE, TOP_P, SEED = 0.6, 0.9, 7
_MAX_NEW_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and its continuation; `finished` if the model ended it by itself."""

    prompt: str
    text: str
    finished: bool


def completion(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str) -> Sample:
    """Return the prompt with its continuation."""
    return _sample(model, tokenizer, prompt, tokenizer.encode(prompt, add_special_tokens=False))


def answer(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, question: str) -> Sample:
    """Return the answer to a question put through the chat template."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer.encode(str(prompt), add_special_tokens=False)
    return _sample(model, tokenizer, question, ids)


def _sample(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str, ids: list[int]
) -> Sample:
    torch.manual_seed(SEED)
    prompt_ids = torch.tensor([ids])
    output = model.generate(  # type: ignore[misc]  # its annotated `self` is no model class
        prompt_ids,
        attention_mask=torch.ones_like(prompt_ids),
        max_new_tokens=_MAX_NEW_TOKENS,
        do_sample=True,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        top_k=0,
    )
    new_ids = output[0, len(ids) :]
    finished = int(new_ids[-1]) in model.generation_config.eos_token_id
    return Sample(prompt, str(tokenizer.decode(new_ids, skip_special_tokens=True)), finished)
