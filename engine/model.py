"""A transformers model whose attention reads the paged pool, and the facts about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from engine.allow_list import Config, read_config
from engine.attention import ATTENTION, AttentionStep, LayerOrder, Softmax
from engine.checkpoint import check_tokenizer, check_weights
from engine.errors import ModelRefused
from engine.int8_weights import Quantised, quantise_linears
from engine.kv_pool import BlockLayout
from engine.quantisation import Quantisation
from engine.row_tiles import tile_rows
from engine.tiled_experts import EXPERTS

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
_QUANTISED = "float32 or bfloat16"
DRY_RUN_TOKENS = 2
# transformers' default for mixtures of experts, torch's grouped product, has no float64.
_EXPERTS = {torch.float64: {"experts_implementation": "eager"}}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the rest of the engine needs to know of a model."""

    directory: Path
    architecture: str
    vocab_size: int
    max_context: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    eos_token_ids: tuple[int, ...]

    @property
    def tokenizer_path(self) -> Path:
        return self.directory / "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model: `forward` is run by `engine.model_runner.ModelRunner`."""

    facts: ModelFacts
    module: torch.nn.Module
    dtype: torch.dtype
    device: torch.device
    is_deterministic: bool = False
    """Its matrix products are tiled, and its steps have to be padded."""
    quantised: Quantised | None = None
    """What became of its weights, where they are quantised."""
    stored: torch.dtype | None = None
    """What its keys and values are kept in, where that is not `dtype`."""

    def block_layout(self, block_size: int) -> BlockLayout:
        facts = self.facts
        sizes = facts.num_layers, block_size, facts.num_kv_heads, facts.head_dim
        return BlockLayout(*sizes, self.dtype, self.stored)

    @torch.inference_mode()
    def forward(
        self, token_ids: Tensor, positions: Tensor, logit_rows: Tensor, step: AttentionStep
    ) -> Tensor:
        """token_ids, positions [T], logit_rows [R] -> logits [R, vocab_size]."""
        output = self.module(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=logit_rows,
            step=step,
        )
        logits: Tensor = output.logits[0]
        return logits


def load_model(
    directory: Path,
    dtype: torch.dtype,
    device: torch.device,
    *,
    deterministic: bool = False,
    random_seed: int | None = None,
    quantisation: Quantisation = Quantisation.NONE,
) -> Model:
    """Load a model directory of the allow-list; ModelRefused names the field that speaks against it.

    A `deterministic` one (on a CPU only) gives a token the same logits whoever shares its step. With a
    `random_seed` the weights are drawn on the device and none are read: for measuring, not for answers.
    """
    if dtype not in DTYPES.values():
        raise ValueError(f"dtype is {dtype}; accepted: {', '.join(DTYPES)}")
    if quantisation.weights and (dtype == torch.float64 or device.type != "cpu"):
        raise ValueError(
            f"quantisation is {quantisation.value} in {dtype} on {device}; accepted: {_QUANTISED} on a CPU"
        )
    config = read_config(directory)
    if random_seed is None:
        check_weights(directory)
    check_tokenizer(directory)
    if deterministic and device.type != "cpu":
        raise ValueError(f"deterministic on {device}; accepted: cpu")
    experts = {"experts_implementation": EXPERTS} if deterministic else _EXPERTS.get(dtype, {})
    if random_seed is None:
        module = _read_module(directory, dtype, experts)
    else:
        module = _draw_module(directory, dtype, device, experts, random_seed)
    # Every token of a step is a token; some models would search each step for padding to warn about.
    module.config.pad_token_id = None
    module.eval().requires_grad_(requires_grad=False)
    quantised = quantise_linears(module, device) if quantisation.weights else None
    module.to(device)
    if deterministic:
        tile_rows(module)
    heads = _dry_run(directory, module, device)
    facts = _facts(directory, config, module, heads)
    stored = torch.int8 if quantisation.kv else None
    return Model(
        facts, module, dtype, device, is_deterministic=deterministic, quantised=quantised, stored=stored
    )


def _read_module(directory: Path, dtype: torch.dtype, experts: dict[str, str]) -> Any:
    library: Any = transformers
    library.utils.logging.disable_progress_bar()
    try:
        module, report = library.AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=dtype,
            attn_implementation=ATTENTION,
            **experts,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ModelRefused(
            directory,
            "the checkpoint",
            f"cannot be loaded ({error})",
            "what transformers' save_pretrained writes",
        ) from error
    for kind in ("missing_keys", "mismatched_keys"):
        if report.get(kind):
            # transformers fills these with random numbers and goes on.
            names = ", ".join(map(str, sorted(report[kind])[:3]))
            raise ModelRefused(
                directory, "the weights", f"have {kind} ({names})", "every weight of the config"
            )
    return module


def _draw_module(
    directory: Path, dtype: torch.dtype, device: torch.device, experts: dict[str, str], seed: int
) -> Any:
    """As the config's own initialisation has it, on the device at once: 8e9 weights take a GPU seconds."""
    library: Any = transformers
    config = library.AutoConfig.from_pretrained(directory, local_files_only=True)
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]), device:
        torch.manual_seed(seed)
        return library.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=ATTENTION, **experts
        )


@dataclass(frozen=True, slots=True)
class _Heads:
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int


class _DryRun:
    """Stands in for a step: notes what each layer asks for and answers zeros."""

    def __init__(self) -> None:
        self.order = LayerOrder()
        self.shapes: set[tuple[int, int, int, int]] = set()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, softmax: Softmax) -> Tensor:
        self.order.enter(layer)
        self.shapes.add((query.shape[1], key.shape[1], key.shape[2], value.shape[2]))
        return torch.zeros_like(query)


def _dry_run(directory: Path, module: Any, device: torch.device) -> _Heads:
    """One step without a pool: every layer must call the attention function once, all with the same heads."""
    step = _DryRun()
    tokens = torch.zeros(1, DRY_RUN_TOKENS, dtype=torch.int64, device=device)
    positions = torch.arange(DRY_RUN_TOKENS, device=device)[None]
    rows = torch.tensor([DRY_RUN_TOKENS - 1], device=device)
    try:
        with torch.inference_mode():
            logits = module(
                input_ids=tokens, position_ids=positions, use_cache=False, logits_to_keep=rows, step=step
            ).logits
    except (AssertionError, TypeError) as error:
        raise _bypassed(directory, str(error)) from error
    num_layers = module.config.num_hidden_layers
    if step.order.next_layer != num_layers:
        raise _bypassed(directory, f"{step.order.next_layer} of {num_layers} layers called it")
    if logits.shape[:2] != (1, 1):
        raise ModelRefused(directory, "logits", f"have shape {list(logits.shape)}", "only the rows asked for")
    (num_q_heads, num_kv_heads, head_dim, value_dim), *others = step.shapes
    if others or value_dim != head_dim or num_q_heads % num_kv_heads:
        raise ModelRefused(
            directory, "attention heads", f"are {sorted(step.shapes)}", "the same sizes in all layers"
        )
    return _Heads(num_layers, num_q_heads, num_kv_heads, head_dim)


def _bypassed(directory: Path, found: str) -> ModelRefused:
    return ModelRefused(
        directory,
        "attention",
        f"does not go through the attention function ({found})",
        "one call for each layer",
    )


def _facts(directory: Path, config: Config, module: Any, heads: _Heads) -> ModelFacts:
    loaded = module.config
    eos = module.generation_config.eos_token_id
    if eos is None:
        eos = loaded.eos_token_id
    eos_ids = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
    return ModelFacts(
        directory=directory,
        architecture=config["model_type"],
        vocab_size=loaded.vocab_size,
        max_context=loaded.max_position_embeddings,
        num_layers=heads.num_layers,
        num_q_heads=heads.num_q_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        eos_token_ids=eos_ids,
    )
