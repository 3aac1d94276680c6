"""The folder that is committed: tokenizer with chat template, fp16 weights, and generation defaults."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BOS, EOS, END = "<|bos|>", "<|eos|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
SPECIAL_TOKENS = (BOS, EOS, END, *ROLES)

CHAT_TEMPLATE = r"""{{- bos_token }}
{%- set messages = messages | list %}
{%- if tools %}
    {{- '<|system|>' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
        {%- set messages = messages[1:] %}
    {%- endif %}
    {{- 'You may call functions. They are described in <tools></tools>, each as a JSON object:\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' + tool | tojson }}
    {%- endfor %}
    {{- '\n</tools>\nWrite each call as a JSON object in <tool_call></tool_call>:\n' }}
    {{- '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call><|end|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|user|><tool_response>\n' + message.content + '\n</tool_response><|end|>' }}
    {%- elif message.role in ['system', 'user', 'assistant'] %}
        {{- '<|' + message.role + '|>' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\n' if message.content or not loop.first }}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|end|>' }}
    {%- else %}
        {{- raise_exception('role ' + message.role + ': expected system, user, assistant or tool') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""


def train_tokenizer(texts: Iterable[str], vocab_size: int, max_positions: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE: any unicode round-trips, and nothing is added when encoding.

    No <|bos|> is put in front of a prompt: the chat template writes its own, and the training rows of
    documentation start anywhere, so a completion needs none.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers left it unannotated
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        additional_special_tokens=[END, *ROLES],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=max_positions,
    )


def end_token_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the ids that begin, end and pad a sequence, as the configurations of transformers name them."""
    return {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.convert_tokens_to_ids([EOS, END]),
        "pad_token_id": tokenizer.pad_token_id,
    }


def save_checkpoint(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights in fp16, config, tokenizer with chat template, and the ids that end a generation."""
    model.generation_config = GenerationConfig(**end_token_ids(tokenizer))  # type: ignore[no-untyped-call]
    model.half().save_pretrained(folder)  # type: ignore[no-untyped-call]  # left unannotated
    tokenizer.save_pretrained(folder)
    # The class as every release of transformers knows it, not only the one that saved the file.
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # save_pretrained leaves the weights readable by their owner only; a service may run as someone else.
    for path in folder.iterdir():
        path.chmod(0o644)


def load_checkpoint(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Load the saved weights, computing in fp32: figures include the rounding of what was saved."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model, PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
