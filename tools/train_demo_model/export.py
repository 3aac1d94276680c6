"""The folder that is committed: fp16 weights, tokenizer, generation defaults and model card."""

import json
from pathlib import Path

import torch
from transformers import (
    GenerationConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tools.train_demo_model.tokenizer import END, EOS

MAX_CHECKPOINT_BYTES = 8_000_000


def save_checkpoint(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights in fp16, config, tokenizer with chat template, and the ids that end a generation."""
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]  # left unannotated
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.convert_tokens_to_ids([EOS, END]),
        pad_token_id=tokenizer.pad_token_id,
    )
    model.half().save_pretrained(folder)  # type: ignore[no-untyped-call]  # left unannotated
    tokenizer.save_pretrained(folder)
    _name_tokenizer_class(folder / "tokenizer_config.json")
    # save_pretrained leaves the weights readable by their owner only; a service may run as someone else.
    for path in folder.iterdir():
        path.chmod(0o644)


def _name_tokenizer_class(config_file: Path) -> None:
    """Name the class as every release of transformers knows it, not only the one that saved the file."""
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_checkpoint(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Load the saved weights, computing in fp32: figures include the rounding of what was saved."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model, PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def folder_bytes(folder: Path) -> int:
    """Return the size of all files in the folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def check_size(folder: Path) -> None:
    """Raise ValueError if the folder grew too large to commit."""
    if (size := folder_bytes(folder)) > MAX_CHECKPOINT_BYTES:
        raise ValueError(f"{folder}: {size} bytes, at most {MAX_CHECKPOINT_BYTES} are to be committed")
