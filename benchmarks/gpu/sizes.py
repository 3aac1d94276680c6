"""The sizes of a measurement: a model's shape, and amounts. `TINY` is for trying the program on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

BLOCK_SIZE = 16
KEYS_AND_VALUES = 2
FLOPS_PER_WEIGHT = 2


class Heads(NamedTuple):
    dim: int
    query: int
    kv: int

    def __str__(self) -> str:
        return f"{self.dim} × {self.query}/{self.kv}"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Llama model's shape; weights and KV have `element_bytes` each."""

    name: str
    hidden: int
    layers: int
    heads: Heads
    intermediate: int
    vocab: int
    max_context: int
    element_bytes: int

    @property
    def config(self) -> Mapping[str, Any]:
        """The content of config.json for transformers."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads.query,
            "num_key_value_heads": self.heads.kv,
            "head_dim": self.heads.dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.max_context,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
        }

    @property
    def weights(self) -> int:
        """The weights that a token uses: all except the embedding table, of which it reads one row."""
        attention = self.hidden * self.heads.dim * 2 * (self.heads.query + self.heads.kv)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + self.hidden + self.hidden * self.vocab

    @property
    def kv_bytes_per_token(self) -> int:
        return self.layers * KEYS_AND_VALUES * self.heads.kv * self.heads.dim * self.element_bytes

    def attention_flops(self, tokens: int) -> float:
        """Return the operations of a causal prompt: two products over half of the square, in every layer."""
        return 2 * FLOPS_PER_WEIGHT * self.layers * self.heads.query * self.heads.dim * tokens * tokens / 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amounts of everything that is measured."""

    model: ModelShape
    ceiling_mib: int
    """MiB of the buffers that ceilings are measured with; far larger than any cache."""
    ceiling_side: int
    """Side of the square matrices."""
    kernel_batches: tuple[tuple[int, int], ...]
    """(sequences, context) that decode attention is timed at."""
    kernel_tokens: int
    """Tokens of a step that the other kernels are timed at."""
    decode_batches: tuple[int, ...]
    variant_batches: tuple[int, int]
    decode_context: int
    decode_tokens: tuple[int, int]
    """The short and the long output whose difference is counted."""
    prefills: tuple[tuple[int, int], ...]
    """(prompts, tokens of each)."""
    burst_requests: int
    burst_scale: float
    handoff_tokens: int
    max_num_seqs: int
    token_budget: int
    chat_scale: float
    rates: tuple[float, ...]
    """Requests per second that the fleet is offered."""
    rate_s: float
    """Seconds for which each rate is offered."""


LLAMA_8B = Sizes(
    ModelShape("Llama-3.1-8B", 4096, 32, Heads(128, 32, 8), 14336, 128256, 32768, 2),
    ceiling_mib=4096,
    ceiling_side=8192,
    kernel_batches=((32, 4096), (256, 1024)),
    kernel_tokens=2048,
    decode_batches=(1, 8, 32, 64, 128, 256),
    variant_batches=(1, 64),
    decode_context=1024,
    decode_tokens=(8, 136),
    prefills=((16, 2048), (4, 8192)),
    burst_requests=1000,
    burst_scale=1.0,
    handoff_tokens=8192,
    max_num_seqs=512,
    token_budget=8192,
    chat_scale=1.0,
    rates=(8.0, 12.0, 16.0),
    rate_s=25.0,
)

TINY = Sizes(
    ModelShape("tiny", 64, 2, Heads(16, 4, 2), 96, 256, 512, 4),
    ceiling_mib=4,
    ceiling_side=128,
    kernel_batches=((2, 64),),
    kernel_tokens=16,
    decode_batches=(1, 4),
    variant_batches=(1, 4),
    decode_context=32,
    decode_tokens=(2, 6),
    prefills=((2, 64),),
    burst_requests=6,
    burst_scale=0.05,
    handoff_tokens=128,
    max_num_seqs=8,
    token_budget=128,
    chat_scale=0.02,
    rates=(4.0,),
    rate_s=2.0,
)

SIZES = {"llama-3.1-8b": LLAMA_8B, "tiny": TINY}
