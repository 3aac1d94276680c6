"""A transformers model whose attention reads the paged pool, and the facts about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from engine.errors import FusionDiffers, ModelRefused
from engine.kv.kv_pool import BlockLayout
from engine.model.adapters.attaching import (
    AdaptableLinears,
    AdapterRoom,
    Adapters,
    attach,
    linear_sizes,
    make_room,
)
from engine.model.adapters.checkpoint import AdapterFiles
from engine.model.allow_list import Config, is_listed, read_config
from engine.model.attention.attention import ATTENTION, AttentionStep
from engine.model.attention.dry_run import LayerFacts, dry_run
from engine.model.attention.step_batch import AdapterRows
from engine.model.checkpoint import check_tokenizer, check_weights, stated_ends, tensor_shapes, weight_bytes
from engine.model.deterministic.invariant_rows import make_rows_invariant
from engine.model.deterministic.row_tiles import tile_rows
from engine.model.deterministic.tiled_experts import EXPERTS
from engine.model.fusion import NOT_FUSED, FusionReport, can_be_native, fuse
from engine.model.fusion.cpu_layers import pack_linears
from engine.model.parallel.adapter_share import AdapterShare
from engine.model.parallel.cutting import Cuts, cut
from engine.model.parallel.part import Part
from engine.model.parallel.stage import LayerCut, Stage, cut_layers
from engine.model.quantised import gguf_weights
from engine.model.quantised.gguf_file import has_gguf
from engine.model.quantised.kept_numbers import KeptNumbers, KeptOf, loader_of_the_rest, put_back, rounded
from engine.model.quantised.quantisation import Quantisation
from engine.model.quantised.rounding import Quantised, quantise_ends, quantise_linears, quantised_of
from engine.model.quantised.stored_linears import loader, unpack_linears
from engine.model.quantised.whole_linears import WholeLinear
from engine.model.unlisted import check_unlisted, check_windows
from engine.starting import OnProgress, Phase, ignore_progress

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
NATIVE_KV = (None, torch.int8)
"""The dtypes of keys and values that native ops read; None is that of the model."""
# transformers' default for mixtures of experts, torch's grouped product, has no float64.
_EXPERTS = {torch.float64: {"experts_implementation": "eager"}}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts about a model that the rest of the engine needs."""

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
    """A loaded model, which `engine.execution.model_runner` runs."""

    facts: ModelFacts
    module: torch.nn.Module
    dtype: torch.dtype
    device: torch.device
    is_deterministic: bool = False
    """Whether products and norms reduce each row alone; on a CPU its steps have to be padded."""
    quantised: Quantised | None = None
    """Its weights of 8 or 4 bits, if it has any."""
    stored: torch.dtype | None = None
    """The dtype that keys and values are stored in, if it is not `dtype`."""
    fusion: FusionReport = NOT_FUSED
    """The modules that were replaced by fused ones."""
    adapters: Adapters | None = None
    """The LoRA adapters beside its linear layers, if it has any."""
    cuts: Cuts | None = None
    """Where it meets the other parts, if it is one part of a model (`engine.model.parallel`)."""

    stage: LayerCut | None = None
    """Which of the model's layers it has, if it is one stage of a pipeline."""

    @property
    def part(self) -> Part | None:
        """The part of the model that it is; None for the whole. `facts` are those of the whole."""
        return None if self.cuts is None else self.cuts.part

    @property
    def is_fused(self) -> bool:
        """Whether its steps have to be `RotatingStep`s."""
        return bool(self.fusion.replaced)

    def block_layout(self, block_size: int) -> BlockLayout:
        facts = self.facts
        sizes = facts.num_layers, block_size, facts.num_kv_heads, facts.head_dim
        return BlockLayout(*sizes, self.dtype, self.stored)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        logit_rows: Tensor,
        step: AttentionStep,
        adapters: AdapterRows | None = None,
    ) -> Tensor:
        """Run token_ids and positions [T]; return logits [R, vocab_size] of logit_rows [R].

        Some of the tokens may have `adapters`.
        """
        if adapters is None:
            return self._forward(token_ids, positions, logit_rows, step)
        assert self.adapters is not None, "rows have an adapter, and the model has none"
        with self.adapters.step.running(adapters):
            return self._forward(token_ids, positions, logit_rows, step)

    def _forward(
        self, token_ids: Tensor, positions: Tensor, logit_rows: Tensor, step: AttentionStep
    ) -> Tensor:
        output = self.module(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=logit_rows,
            step=step,
        )
        logits: Tensor = output.logits[0]
        return logits


OnLoaded = Callable[[Any, ModelFacts, LayerFacts], None]
"""Called with transformers' module once its weights are there, before any part of it is replaced."""


def load_model(
    directory: Path,
    dtype: torch.dtype,
    device: torch.device,
    *,
    deterministic: bool = False,
    fused: bool = False,
    random_seed: int | None = None,
    quantisation: Quantisation = Quantisation.NONE,
    unlisted: bool = False,
    on_loaded: OnLoaded | None = None,
    adapters: Sequence[AdapterFiles] = (),
    adapter_room: AdapterRoom | None = None,
    part: Part | None = None,
    stage: Stage | None = None,
    shares_memory: bool = True,
    kept_of: KeptOf | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Model:
    """Load a model directory of the allow-list; with `unlisted`, of any architecture that may fit.

    A `deterministic` model gives a token the same logits whatever else is in its step; on a GPU it cannot
    have experts. Parts of a `fused` model are replaced by fused ones (`engine.model.fusion`) that were
    checked to compute the same; those of a deterministic one only if native ops compute all of them. With a
    `random_seed`, weights are drawn on the device and none are read, for measuring. `on_progress` gets the
    number of bytes to read. With `adapters`, tokens may have one of them, and with `adapter_room` those that
    are loaded later; such a model is not deterministic.
    Of a `part`, a `stage` or a part of a stage only its weights are kept; it has to be joined with the others
    (`engine.model.parallel`). Only with parts that it `shares_memory` with it meets in native ops, which then
    may compute all layers in one call. Numbers of 4 bits that weights are rounded to are taken from where
    `kept_of` keeps them, or kept there.

    Raises ModelRefused or AdapterRefused, naming the field that is not accepted, and ValueError for settings
    that do not fit.
    """
    if dtype not in DTYPES.values():
        raise ValueError(f"dtype is {dtype}; accepted: {', '.join(DTYPES)}")
    has_adapters = bool(adapters) or adapter_room is not None
    if deterministic and has_adapters:
        raise ValueError("deterministic with adapters; accepted: one of the two")
    is_cut = part is not None or stage is not None
    if is_cut and (deterministic or unlisted):
        raise ValueError("a part of a model that is deterministic or unlisted; accepted: the whole")
    config = read_config(directory, unlisted=unlisted)
    if not is_listed(config):
        check_unlisted(directory, config)
    is_stored = random_seed is None and bool(config.get("quantization_config"))
    is_rounded = quantisation.weights == 4 and random_seed is None and not is_stored
    if quantisation.weights or is_stored:
        _check_whole(quantisation.weights or 8, dtype, device, deterministic=deterministic)
    if quantisation.kv == "float8_e4m3fn":
        _check_fp8(device)
    if random_seed is None:
        check_weights(directory)
        on_progress(Phase.READING, 0, weight_bytes(directory))
    check_tokenizer(directory)
    if deterministic and device.type != "cpu" and dtype == torch.float64:
        raise ValueError(f"deterministic in {dtype} on {device}; accepted: on a CPU, or float32 or bfloat16")
    if deterministic and fused and device.type != "cpu":
        raise ValueError(f"fused is True with deterministic on {device}; accepted: on a CPU")
    load = partial(
        _load,
        directory,
        config,
        dtype,
        device,
        deterministic=deterministic,
        random_seed=random_seed,
        quantisation=quantisation,
        on_loaded=on_loaded,
        adapters=adapters,
        adapter_room=adapter_room,
        part=part,
        stage=stage,
        shares_memory=shares_memory,
        kept=None if kept_of is None or not is_rounded else kept_of(directory, dtype),
        on_progress=on_progress,
    )
    try:
        return load(fused=fused)
    except FusionDiffers as error:
        report = FusionReport(reason=str(error))
    # The weights were merged: read them again.
    return replace(load(fused=False), fusion=report)


def _check_whole(bits: int, dtype: torch.dtype, device: torch.device, *, deterministic: bool) -> None:
    if dtype == torch.float64:
        raise ValueError(f"dtype is {dtype} with int{bits} weights; accepted: float32 or bfloat16")
    if bits == 4 and device.type != "cpu":
        raise ValueError(f"int4 weights on {device}; accepted: on a CPU, or int8")
    # The kernel chooses its tiles, and how it splits a sum, by the number of rows.
    if deterministic and device.type != "cpu":
        raise ValueError(f"deterministic with int8 weights on {device}; accepted: on a CPU")


def _check_fp8(device: torch.device) -> None:
    """Raise ValueError if Triton cannot compute fp8 on this GPU."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        found = ".".join(map(str, torch.cuda.get_device_capability(device)))
        raise ValueError(f"kvfp8 on {device} of compute capability {found}; accepted: 8.9 or higher")


def _load(
    directory: Path,
    config: Config,
    dtype: torch.dtype,
    device: torch.device,
    *,
    deterministic: bool,
    fused: bool,
    random_seed: int | None,
    quantisation: Quantisation,
    on_loaded: OnLoaded | None,
    adapters: Sequence[AdapterFiles],
    adapter_room: AdapterRoom | None,
    part: Part | None,
    stage: Stage | None,
    shares_memory: bool,
    kept: KeptNumbers | None,
    on_progress: OnProgress,
) -> Model:
    numbers = None if kept is None else kept.read()
    experts = {"experts_implementation": EXPERTS} if deterministic else _EXPERTS.get(dtype, {})
    if random_seed is None:
        module = _read_module(directory, dtype, experts, config, numbers)
    else:
        module = _draw_module(directory, dtype, device, experts, random_seed)
    # Steps have no padding; some models would search each step for it, to warn.
    # Set past the checks of configs that do not let it be missing.
    vars(module.config)["pad_token_id"] = None
    module.eval().requires_grad_(requires_grad=False)
    unpack_linears(directory, module, device)
    gguf_weights.unpack_blocks(directory, module, device)
    if numbers is not None:
        put_back(module, numbers)
    _quantise(module, quantisation, device, None if numbers is not None else kept, on_progress)
    module.to(device)
    quantised = quantised_of(module)
    layers = dry_run(directory, module, device)
    facts = _facts(directory, config, module, layers)
    if not is_listed(config):
        check_windows(directory, module.config, layers)
    if on_loaded is not None:
        on_loaded(module, facts, layers)
    has_adapters = bool(adapters) or adapter_room is not None
    whole_sizes = linear_sizes(module) if has_adapters else {}
    layer_cut = None if stage is None else cut_layers(module, stage)
    cuts = None if part is None else cut(module, layers, part)
    share = AdapterShare(layers, part, layer_cut)
    if stage is not None or part is not None:
        layers = dry_run(directory, module, device)  # those that are left
    stored = None if quantisation.kv is None else getattr(torch, quantisation.kv)
    if deterministic and fused:
        fused = stored in NATIVE_KV and can_be_native(module, layers)
    if deterministic and device.type == "cpu" and not fused:
        tile_rows(module, on_progress)
    elif deterministic and device.type != "cpu":
        make_rows_invariant(directory, module)
    linears = AdaptableLinears(linear_sizes(module) if has_adapters else {}, whole_sizes, share)
    is_one_call = stored in NATIVE_KV and shares_memory
    fusion = fuse(module, layers, native=is_one_call) if fused else NOT_FUSED
    if device.type == "cpu" and not deterministic:
        pack_linears(module)
    attached = _attached(module, adapters, adapter_room, linears, dtype, device)
    return Model(
        facts, module, dtype, device, deterministic, quantised, stored, fusion, attached, cuts, layer_cut
    )


def _quantise(
    module: Any,
    quantisation: Quantisation,
    device: torch.device,
    kept: KeptNumbers | None,
    on_progress: OnProgress,
) -> None:
    """Round what is left of a model's float weights, as far as the setting says, and keep it."""
    if quantisation.weights:
        quantise_linears(module, quantisation.weights, device, on_progress=on_progress)
    if kept is not None:
        kept.write(rounded(module))
    if quantisation.logits:
        quantise_ends(module, device)


def _attached(
    module: Any,
    adapters: Sequence[AdapterFiles],
    room: AdapterRoom | None,
    linears: AdaptableLinears,
    dtype: torch.dtype,
    device: torch.device,
) -> Adapters | None:
    if room is not None:
        return make_room(module, room, linears, dtype, device)
    return attach(module, adapters, linears, dtype, device) if adapters else None


def _read_module(
    directory: Path,
    dtype: torch.dtype,
    experts: dict[str, str],
    config: Config,
    numbers: Mapping[str, WholeLinear] | None,
) -> Any:
    library: Any = transformers
    library.utils.logging.disable_progress_bar()
    try:
        model_class: Any = library.AutoModelForCausalLM
        arguments: dict[str, Any] = {}
        folder: Path | None = directory
        if has_gguf(directory):
            folder, (model_class, arguments) = None, gguf_weights.loader(directory)
        elif config.get("quantization_config"):
            model_class, arguments = loader(directory, config, tensor_shapes(directory))
        elif numbers is not None:
            model_class, arguments = loader_of_the_rest(directory, numbers)
        module, report = model_class.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=ATTENTION,
            **experts,
            **arguments,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise ModelRefused(
            directory,
            "the checkpoint",
            f"cannot be loaded ({error})",
            "what transformers' save_pretrained writes",
        ) from error
    for kind in ("missing_keys", "mismatched_keys"):
        if report.get(kind):
            # transformers would fill these with random numbers.
            names = ", ".join(map(str, sorted(report[kind])[:3]))
            raise ModelRefused(
                directory, "the weights", f"have {kind} ({names})", "every weight of the config"
            )
    return module


def _draw_module(
    directory: Path, dtype: torch.dtype, device: torch.device, experts: dict[str, str], seed: int
) -> Any:
    """Draw weights by the config's own initialisation, on the device: 8e9 weights take a GPU seconds."""
    library: Any = transformers
    config = library.AutoConfig.from_pretrained(directory, local_files_only=True)
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]), device:
        torch.manual_seed(seed)
        return library.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=ATTENTION, **experts
        )


def _facts(directory: Path, config: Config, module: Any, layers: LayerFacts) -> ModelFacts:
    loaded = module.config
    if getattr(loaded, "max_position_embeddings", None) is None:
        raise ModelRefused(directory, "max_position_embeddings", "is missing", "the longest context")
    return ModelFacts(
        directory=directory,
        architecture=config["model_type"],
        vocab_size=loaded.vocab_size,
        max_context=loaded.max_position_embeddings,
        num_layers=len(layers.softmaxes),
        num_q_heads=layers.num_q_heads,
        num_kv_heads=layers.num_kv_heads,
        head_dim=layers.head_dim,
        eos_token_ids=stated_ends(directory, loaded.vocab_size),
    )
