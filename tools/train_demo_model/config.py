"""Everything that decides what the checkpoint becomes; the same recipe gives the same checkpoint."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Llama small enough to commit: about 3.4 million parameters, under 7 MB in fp16."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 688
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    max_positions: int = 4096


@dataclass(frozen=True, slots=True)
class LengthShare:
    """How often a training step uses rows of this length; every step holds about the same tokens."""

    rows: int
    tokens: int
    weight: float


# Mostly short rows, which are cheap; the long ones teach the positions up to max_positions.
LENGTHS = (
    LengthShare(rows=8, tokens=256, weight=0.85),
    LengthShare(rows=4, tokens=512, weight=0.08),
    LengthShare(rows=2, tokens=1024, weight=0.05),
    LengthShare(rows=1, tokens=4096, weight=0.02),
)


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
