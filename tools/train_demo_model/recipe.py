"""Everything that decides what the checkpoint becomes; the same recipe gives the same checkpoint."""

from dataclasses import dataclass

SHAPE = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
"""Arguments of LlamaConfig for a model small enough to commit: about 3.4 million parameters, 7 MB in fp16."""

# Mostly short rows, which are cheap; the long ones teach the positions up to the last.
LENGTHS = ((8, 256, 0.85), (4, 512, 0.08), (2, 1024, 0.05), (1, 4096, 0.02))
"""Rows of a step, tokens of each, and the share of such steps."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training run: seeds, length, schedule and the share of rows that are chats."""

    seed: int = 20242
    num_steps: int = 6000
    warmup_steps: int = 200
    peak_lr: float = 3e-3
    weight_decay: float = 0.1
    chat_share: float = 0.35
    held_out_share: float = 0.02
    num_threads: int = 2

    def __post_init__(self) -> None:
        if self.num_steps <= self.warmup_steps:
            raise ValueError(f"num_steps={self.num_steps}: must exceed warmup_steps={self.warmup_steps}")
        if not 0.0 <= self.chat_share < 1.0:
            raise ValueError(f"chat_share={self.chat_share}: must be in [0, 1)")
        if not 0.0 < self.held_out_share < 1.0:
            raise ValueError(f"held_out_share={self.held_out_share}: must be in (0, 1)")
