"""Builds an engine: a model over its pool, checked, measured and warmed up, in a step loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from engine.building.build_draft import (
    can_record,
    draft_block_bytes,
    load_draft,
    measure_draft,
    read_draft_config,
)
from engine.building.settings import EngineSettings
from engine.calibration.determinism_check import check_determinism
from engine.calibration.dtype import checkpoint_dtype, name_of
from engine.calibration.host_memory import check_blocks_fit, check_model_fits, loaded_bytes
from engine.calibration.pool_size import CPU_MEBIBYTES, MEBIBYTE, CudaMemory, blocks_in, blocks_that_fit
from engine.calibration.sweep import Sweep, chunk_floor_s, sweep, warm_up
from engine.core.adapters import AdapterSlots
from engine.core.admission import EngineLimits
from engine.core.memory.block_manager import BlockManager
from engine.core.memory.stores import KVLinks, KVTiers
from engine.errors import EngineError
from engine.execution.decode_graphs import CudaGraphs
from engine.execution.draft_model import DraftEngine
from engine.execution.drafting import MAX_DRAFT_ROWS
from engine.execution.model_runner import ModelRunner
from engine.execution.step_loop import StepLoop
from engine.group.follower import follow
from engine.group.leader import Leader
from engine.group.links import Kind, Link
from engine.group.pipeline import Pipeline
from engine.group.remote.group import RemoteLeader, follow_connected
from engine.group.remote.sums import Connected
from engine.kv.kv_pool import BlockLayout, KVPool
from engine.model.adapters.checkpoint import AdapterFiles, read_adapter
from engine.model.allow_list import Config, is_listed, read_config
from engine.model.fingerprint import fingerprint
from engine.model.model import Model, load_model
from engine.model.parallel.cutting import check_divides
from engine.model.parallel.stage import check_layers
from engine.proof.proving import Proof, load_proven
from engine.sampling.sampler import warm_draws
from engine.speculation import Speculation
from engine.starting import OnProgress, Phase, ignore_progress
from kernels.native.loader import library
from kernels.native.ops import computes
from model_output.grammar.grammar import Grammars
from model_output.text.detokenizer import Detokenizer
from scheduling.cost.cost_fit import fit
from scheduling.cost_model import UNKNOWN_COST, CostModel, Sample
from scheduling.policies import by_name


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine ready for its first step. `cost` is UNKNOWN_COST if `samples` were too few to fit."""

    runner: ModelRunner
    loop: StepLoop
    fingerprint: str
    cost: CostModel
    samples: tuple[Sample, ...]
    grammars: Grammars
    determinism_digest: str
    """A digest of the logits of known tokens; empty unless the engine is deterministic."""
    uses_native_ops: bool
    """Whether `kernels.native` computes some of its ops."""
    proof: Proof | None
    """The proof of its model; None for one of the list."""
    adapters: Mapping[str, str]
    """The digest of each LoRA adapter, by its name."""
    blocks: BlockManager


Measure = Callable[[ModelRunner, str], Sweep]
"""Measures what steps of a runner cost, given the fingerprint of its engine."""


@dataclass(frozen=True, slots=True)
class PreparedEngine:
    """A model over its pool, checked, measured and warmed up."""

    settings: EngineSettings
    group: Leader | Pipeline | RemoteLeader | None
    runner: ModelRunner
    draft: DraftEngine | None
    fingerprint: str
    determinism_digest: str
    cost: CostModel
    samples: tuple[Sample, ...]
    proof: Proof | None

    @property
    def kv_identity(self) -> str:
        """Names all that decides on the bytes of its blocks, beside their tokens."""
        # KV that was computed without `deterministic` has other bits.
        return f"{self.fingerprint} {self.determinism_digest}"


def build(
    settings: EngineSettings,
    measure: Measure | None = None,
    on_progress: OnProgress = ignore_progress,
    group: Leader | Pipeline | RemoteLeader | None = None,
) -> BuiltEngine:
    """Build an engine without tiers and links: `prepare` it, and `assemble` its step loop."""
    return assemble(prepare(settings, measure, on_progress, group))


def prepare(
    settings: EngineSettings,
    measure: Measure | None = None,
    on_progress: OnProgress = ignore_progress,
    group: Leader | Pipeline | RemoteLeader | None = None,
) -> PreparedEngine:
    """Load and measure an engine, and call `on_progress` on the way. Without `measure` sweeps are run.

    With a `group`, its processes compute steps together; the settings' part or stage is then the leader's.

    Raises ModelRefused, AdapterRefused or DraftRefused for what cannot be served, or not proven, GroupRefused
    if a process of the group cannot take part, ValueError for a setting that is not valid, and
    NotDeterministic if a deterministic engine does not give the same bits on this machine.
    """
    on_progress(Phase.READING, 0, 0)
    adapters = [read_adapter(name, path) for name, path in settings.adapters]
    config = read_config(settings.model, unlisted=settings.prove_model)
    _check_cut(settings, config)
    draft_config = _read_draft_config(settings, config)
    _check_model_fits(settings, config, draft_config, adapters)
    model, proof = _load(settings, config, adapters, on_progress)
    draft = _load_draft(settings, model, on_progress)
    layout = model.block_layout(settings.block_size)
    draft_bytes = draft_block_bytes(draft, settings.block_size)
    num_blocks = _num_blocks(settings, model, layout, draft_bytes)
    if settings.device.type == "cpu" and settings.available_bytes is not None:
        check_blocks_fit(layout.block_bytes + draft_bytes, num_blocks, settings.available_bytes())
    pool = KVPool(layout, num_blocks, settings.device)
    name = _fingerprint(settings, model)
    runner = ModelRunner(model, pool, group)
    if group is not None:
        group.wait_ready(_group_name(name, model), on_progress)
        group.open(runner, _most_tokens(settings))
    determinism_digest = check_determinism(runner, on_progress) if settings.deterministic else ""
    sizes = {"max_num_seqs": settings.max_num_seqs, "token_budget": settings.token_budget}
    record = None
    if can_record(settings.device, settings.dtype, wanted=settings.cuda_graphs):
        record = CudaGraphs(settings.device), partial(on_progress, Phase.RECORDING)
        if group is None:  # in a group the host sends messages in the middle of a step
            runner.record_decodes(settings.max_num_seqs, *record)
    on_progress(Phase.MEASURING, 0, 0)
    warm_up(runner, **sizes)
    warm_draws(settings.device, settings.dtype, model.facts.vocab_size)
    measured = measure or (lambda runner, _: sweep(runner, **sizes, on_progress=on_progress))
    swept = measured(runner, name)
    cost = fit(swept.samples, floor_s=chunk_floor_s(runner, swept.samples)) or UNKNOWN_COST
    if not swept.is_whole:  # large steps were not measured: do not plan them by the cost of small ones
        cost = replace(cost, is_trusted=False)
    draft_engine = None
    if draft is not None:
        draft_name = _fingerprint(settings, draft)
        draft_engine = measure_draft(
            draft,
            num_blocks,
            settings.block_size,
            **sizes,
            record=record,
            measure=lambda runner: measured(runner, draft_name),
        )
    return PreparedEngine(
        settings, group, runner, draft_engine, name, determinism_digest, cost, tuple(swept.samples), proof
    )


def assemble(
    prepared: PreparedEngine, tiers: KVTiers | None = None, links: KVLinks | None = None
) -> BuiltEngine:
    """Put an engine together that is ready for its first step.

    `tiers` have blocks that left its pool, and `links` lead to workers that lend theirs.
    """
    settings, group, runner = prepared.settings, prepared.group, prepared.runner
    model, pool = runner.model, runner.pool
    on_allocated = group.on_allocated if isinstance(group, RemoteLeader) else None
    blocks = BlockManager(pool.num_blocks, settings.block_size, tiers, on_allocated)
    loop = StepLoop(
        runner,
        pool.tensor,
        blocks,
        limits=EngineLimits(
            vocab_size=model.facts.vocab_size,
            max_context=model.facts.max_context,
            eos_token_ids=model.facts.eos_token_ids,
            max_num_seqs=settings.max_num_seqs,
            token_budget=settings.token_budget,
        ),
        fingerprint=prepared.fingerprint,
        detokenizer=Detokenizer.from_file(model.facts.tokenizer_path),
        policy=by_name(settings.policy),
        cost=prepared.cost,
        deterministic=settings.deterministic,
        speculates=settings.speculation is Speculation.LOOKUP,
        draft_model=prepared.draft,
        adapters=_adapter_slots(settings, model),
        takes_forced=not runner.replays_decodes,  # only steps of one token a row are replayed
        # Followers are told the tokens of each step, so the host has to know them.
        overlaps=None if group is None else False,
        stages=group if isinstance(group, Pipeline) else None,
        tiers=tiers,
        links=links,
    )
    grammars = Grammars(model.facts.tokenizer_path, model.facts.vocab_size, model.facts.eos_token_ids)
    return BuiltEngine(
        runner,
        loop,
        prepared.fingerprint,
        prepared.cost,
        prepared.samples,
        grammars,
        prepared.determinism_digest,
        _uses_native_ops(model),
        prepared.proof,
        {} if model.adapters is None else model.adapters.digests,
        blocks,
    )


def follow_leader(settings: EngineSettings, link: Link | Connected) -> bool:
    """Load the part or stage of the settings, and compute steps with it until the leader is gone.

    What this process refuses, the leader raises. Return True if the leader has said that it ends.
    """
    messages = link.channels[0] if isinstance(link, Connected) else link
    try:
        config = read_config(settings.model)
        _check_cut(settings, config)
        adapters = [read_adapter(name, path) for name, path in settings.adapters]
        model, _ = _load(settings, config, adapters, ignore_progress)
        name = _group_name(_fingerprint(settings, model), model)
    except (EngineError, ValueError) as error:
        messages.send(Kind.REFUSED, [str(error).encode()])
        messages.receive()  # the leader ends this process, or its own, once it has read that
        return False
    if isinstance(link, Connected):
        return follow_connected(model, settings.block_size, name, link)
    follow(model, settings.block_size, name, link)
    return False


def resolve_device(name: str) -> torch.device:
    """Return the device called `auto`, `cpu` or `cuda`. Raises ValueError if there is no such GPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda; this machine has none, accepted: auto or cpu")
    return torch.device(name)


def native_library(device: torch.device) -> str:
    """Return the name of the library of native ops for a device; empty if there is none."""
    native = library() if device.type == "cpu" else None
    return "" if native is None else native.target.name


def _load(
    settings: EngineSettings, config: Config, adapters: Sequence[AdapterFiles], on_progress: OnProgress
) -> tuple[Model, Proof | None]:
    """Load the model; one that is not listed comes with its proof."""
    fused = settings.fusion and can_fuse(
        settings.device, settings.dtype, deterministic=settings.deterministic
    )
    load = partial(
        load_model,
        settings.model,
        settings.dtype,
        settings.device,
        deterministic=settings.deterministic,
        random_seed=settings.random_weights,
        quantisation=settings.quantisation,
        kept_of=settings.kept_of,
        adapters=adapters,
        adapter_room=settings.adapter_room,
        part=settings.part,
        stage=settings.stage,
        shares_memory=settings.shares_memory,
        unlisted=settings.prove_model,
        on_progress=on_progress,
    )
    if is_listed(config):
        return load(fused=fused), None
    if settings.proof is not None:
        return load(fused=settings.proof.is_fused), settings.proof
    on_gpu = settings.device.type == "cuda"
    return load_proven(
        load,
        fused=fused,
        block_size=settings.block_size,
        free_bytes=CudaMemory(settings.device).free_bytes if on_gpu else settings.available_bytes,
        on_progress=on_progress,
    )


def _adapter_slots(settings: EngineSettings, model: Model) -> AdapterSlots:
    if model.adapters is None:
        return AdapterSlots()
    return AdapterSlots(model.adapters.num_slots, model.adapters.slots, settings.loadable)


def _check_cut(settings: EngineSettings, config: Config) -> None:
    """Raise ValueError for a part or stage of a model that cannot be cut so."""
    on_cpu = settings.device.type == "cpu"
    if settings.part is not None:
        if settings.shares_memory and not on_cpu:  # it was started for a CPU
            chosen = f"--device is auto with --tensor-parallel {settings.part.size}"
            raise ValueError(f"{chosen}, and there is no /dev/nvidia0, but a GPU; accepted: cuda or cpu")
        check_divides(config, settings.part.size)
    if settings.stage is not None:
        if not on_cpu:
            chosen = f"--pipeline-parallel is {settings.stage.size} on {settings.device}"
            raise ValueError(f"{chosen}; accepted: a worker on a CPU (--device cpu)")
        check_layers(config, settings.stage.size)


def _fingerprint(settings: EngineSettings, model: Model) -> str:
    """Return the fingerprint of the model, or of its draft model, in blocks of the settings."""
    layout = model.block_layout(settings.block_size)
    return fingerprint(model.facts.directory, layout, settings.random_weights, settings.quantisation)


def _group_name(fingerprint: str, model: Model) -> str:
    """Return what all processes of a group must have in common: weights, and adapters or room for them."""
    if model.adapters is None:
        return fingerprint
    if not model.adapters.digests:
        return (
            f"{fingerprint} with {model.adapters.num_slots} slots for adapters of rank {model.adapters.rank}"
        )
    return f"{fingerprint} with adapters {model.adapters.digests}"


def _most_tokens(settings: EngineSettings) -> int:
    """Return the most tokens of a step: a chunk of the whole budget beside decodes, some with drafts."""
    return settings.token_budget + settings.max_num_seqs + MAX_DRAFT_ROWS


def _read_draft_config(settings: EngineSettings, config: Config) -> Config | None:
    """Return the config of the draft model, which fits the model; None without one."""
    if settings.draft_model is None:
        return None
    return read_draft_config(settings.draft_model, settings.model, config, unlisted=settings.prove_model)


def _load_draft(settings: EngineSettings, model: Model, on_progress: OnProgress) -> Model | None:
    """Load the draft model, if there is one."""
    if settings.draft_model is None:
        return None
    return load_draft(
        settings.draft_model,
        model,
        fused=settings.fusion and can_fuse(settings.device, settings.dtype, deterministic=False),
        random_seed=settings.random_weights,
        quantisation=settings.quantisation,
        kept_of=settings.kept_of,
        unlisted=settings.prove_model,
        on_progress=on_progress,
    )


def _check_model_fits(
    settings: EngineSettings, config: Config, draft_config: Config | None, adapters: Sequence[AdapterFiles]
) -> None:
    """Raise ValueError if weights and pool are known not to fit. Drawn weights have no files to look at."""
    if settings.device.type != "cpu" or settings.available_bytes is None:
        return
    is_drawn = settings.random_weights is not None
    weights = 0 if is_drawn else loaded_bytes(settings.model, config, settings.dtype)
    num_processes = settings.num_processes
    if name_of(settings.dtype) != checkpoint_dtype(config):
        weights *= num_processes  # each converts all of them before it keeps its part
    if settings.draft_model is not None and draft_config is not None and not is_drawn:
        weights += loaded_bytes(settings.draft_model, draft_config, settings.dtype)
    weights += sum(adapter.num_weights for adapter in adapters) * settings.dtype.itemsize
    if settings.adapter_room is not None:
        weights += settings.adapter_room.num_bytes * num_processes
    pool = 0 if settings.num_blocks is not None else (settings.kv_memory_mb or CPU_MEBIBYTES) * MEBIBYTE
    available = settings.available_bytes()
    check_model_fits(settings.model, settings.dtype, weights, pool, available, settings.draft_model)


def can_fuse(device: torch.device, dtype: torch.dtype, *, deterministic: bool) -> bool:
    """Return whether layers are fused on a device in a dtype.

    Fused layers of PyTorch's own ops were not shown to be faster on a CPU. On a GPU those of a deterministic
    model are not fused.
    """
    return computes(device, dtype) or (device.type == "cuda" and not deterministic)


def _uses_native_ops(model: Model) -> bool:
    """Return whether steps reach native ops: any fused layer does, and attention over KV as it is."""
    if model.is_deterministic:
        return model.fusion.is_native
    return computes(model.device, model.dtype) and (model.is_fused or model.stored is None)


def _num_blocks(settings: EngineSettings, model: Model, layout: BlockLayout, draft_bytes: int) -> int:
    if settings.num_blocks is not None:
        return settings.num_blocks
    if settings.kv_memory_mb is not None:
        return blocks_in(layout.block_bytes + draft_bytes, settings.kv_memory_mb)
    if settings.device.type == "cpu":
        return blocks_in(layout.block_bytes + draft_bytes, CPU_MEBIBYTES)
    return blocks_that_fit(
        model,
        layout,
        CudaMemory(settings.device),
        max_num_seqs=settings.max_num_seqs,
        token_budget=settings.token_budget,
        draft_block_bytes=draft_bytes,
    )
