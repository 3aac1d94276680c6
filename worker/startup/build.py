"""Builds the engine that a worker's flags ask for; step costs may be known from an earlier worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import structlog
import torch

from engine.building.build import (
    BuiltEngine,
    assemble,
    follow_leader,
    native_library,
    prepare,
    resolve_device,
)
from engine.building.settings import EngineSettings
from engine.calibration.dtype import checkpoint_dtype, resolve_dtype
from engine.calibration.pool_size import MEBIBYTE
from engine.calibration.sweep import Sweep, overstatement, sweep
from engine.execution.model_runner import ModelRunner
from engine.group.adapter_loads import GroupAdapters
from engine.group.leader import Leader
from engine.group.links import Link
from engine.group.pipeline import Pipeline
from engine.group.remote.group import RemoteLeader
from engine.group.remote.sums import Connected
from engine.model.adapters.attaching import AdapterRoom
from engine.model.allow_list import is_listed, read_config
from engine.model.fingerprint import weights_digest
from engine.model.fusion import NOT_FUSED, FusionReport
from engine.model.model import DTYPES, Model
from engine.model.parallel.part import Part
from engine.model.parallel.stage import Stage
from engine.model.quantised.rounding import Quantised
from engine.proof.proving import Proof
from engine.proof.versions import own_code
from engine.starting import OnProgress, ignore_progress
from kvtransfer.receiving.links import Links
from runtime.process.limits import Cores, available_bytes, read_cores
from worker.adapters.catalog import AdapterCatalog
from worker.adapters.load_times import LoadTimes
from worker.adapters.loader import AdapterLoader
from worker.config import KV_DISK_MB, LORA_MEMORY_MB, LORA_RANK, WorkerConfig
from worker.engine.engine import Computing, Engine, EngineTiers
from worker.startup.kept_files import device_name
from worker.startup.numbers_cache import numbers_in
from worker.startup.proof_cache import ProofFile, ProofKey
from worker.startup.sweep_cache import SweepKey, cached_sweep
from worker.startup.tiers import TiersOpener

log = structlog.get_logger()


def build_engine(
    config: WorkerConfig,
    on_progress: OnProgress = ignore_progress,
    links: Sequence[Link] | Connected = (),
) -> Engine:
    """Build the engine that `config` asks for. Raises the errors of `engine.building.build.prepare`.

    `links` lead to the worker's other processes, if it has several.
    """
    torch.set_num_threads(config.threads_each)
    _log_threads(config, read_cores())
    device = resolve_device(config.device)
    model_config = read_config(config.service.model, unlisted=config.prove_model)
    choice = resolve_dtype(DTYPES.get(config.dtype), device, model_config)
    opener = None
    if config.kv_disk is not None or config.kv_host_memory_mb:
        disk_mb = config.kv_disk_mb or KV_DISK_MB
        opener = TiersOpener(config.kv_host_memory_mb, config.kv_disk, disk_mb, available_bytes)
    times = LoadTimes()
    catalog = (
        None if config.lora_dir is None else AdapterCatalog(config.lora_dir, times, _adapter_bytes(config))
    )
    log.info("dtype", dtype=choice.name, reason=choice.reason, checkpoint=checkpoint_dtype(model_config))
    proof_file = None if is_listed(model_config) else _proof_file(config, device, choice.name)
    settings = EngineSettings(
        model=config.service.model,
        dtype=choice.dtype,
        device=device,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        kv_memory_mb=config.kv_memory_mb,
        max_num_seqs=config.max_num_seqs,
        token_budget=config.token_budget,
        policy=config.policy,
        deterministic=config.deterministic,
        random_weights=config.random_weights,
        quantisation=config.quantisation,
        kept_of=numbers_in(config.cache),
        cuda_graphs=config.cuda_graphs,
        fusion=config.fusion,
        speculation=config.speculate,
        draft_model=config.draft_model,
        prove_model=config.prove_model,
        proof=None if proof_file is None else proof_file.read(),
        adapters=config.lora,
        adapter_room=None if catalog is None else _adapter_room(config),
        loadable=() if catalog is None else catalog,
        available_bytes=available_bytes,
        part=_part(config, 0),
        stage=_stage(config, 0),
        shares_memory=not isinstance(links, Connected),
    )
    group = _group(config, links)
    if isinstance(group, RemoteLeader) and device.type == "cuda":
        log.warning("tensor_parallel", device="cuda", reason="no machine with two GPUs has run this yet")
    prepared = prepare(settings, partial(_measure, config, on_progress), on_progress, group)
    runner = prepared.runner
    max_context = runner.model.facts.max_context
    tiers = None if opener is None else opener.open(runner.pool, prepared.kv_identity, max_context)
    lenders = Links(runner.pool.block_bytes) if config.share_prefixes else None
    built = assemble(prepared, tiers, lenders)
    if proof_file is not None:
        _keep_proof(proof_file, built.proof, is_new=settings.proof is None)
    _log_native_ops(built)
    if runner.model.fusion != NOT_FUSED:
        _log_fusion(runner.model.fusion)
    if runner.model.quantised is not None:
        _log_quantisation(runner.model.quantised)
    if runner.model.adapters is not None:
        _log_adapters(runner.model)
    loader = None
    if catalog is not None:
        assert runner.model.adapters is not None, "there is room for adapters"
        own = runner.model.adapters
        loader = AdapterLoader(catalog, times, own if group is None else GroupAdapters(own, group))
    return Engine(
        built.loop,
        runner.pool,
        built.fingerprint,
        max_context,
        built.cost,
        built.samples,
        built.grammars,
        Computing(choice.name, built.uses_native_ops),
        built.determinism_digest,
        built.adapters,
        tiers=None if tiers is None else EngineTiers(tiers, built.blocks),
        links=lenders,
        adapter_loader=loader,
    )


def build_follower(config: WorkerConfig, rank: int, link: Link | Connected) -> bool:
    """Run this process as a follower of a worker; return True if its leader has said that it ends."""
    torch.set_num_threads(config.threads_each)
    device = resolve_device(config.device)
    choice = resolve_dtype(DTYPES.get(config.dtype), device, read_config(config.service.model))
    settings = EngineSettings(
        model=config.service.model,
        dtype=choice.dtype,
        device=device,
        block_size=config.block_size,
        num_blocks=None,
        kv_memory_mb=None,
        max_num_seqs=config.max_num_seqs,
        token_budget=config.token_budget,
        policy=config.policy,
        random_weights=config.random_weights,
        quantisation=config.quantisation,
        kept_of=numbers_in(config.cache),
        fusion=config.fusion,
        adapters=config.lora,
        adapter_room=None if config.lora_dir is None else _adapter_room(config),
        part=_part(config, rank),
        stage=_stage(config, rank),
        shares_memory=not isinstance(link, Connected),
    )
    return follow_leader(settings, link)


def _group(
    config: WorkerConfig, links: Sequence[Link] | Connected
) -> Leader | Pipeline | RemoteLeader | None:
    """Return the other processes of the worker, as the engine sees them; None if there are none."""
    if isinstance(links, Connected):
        return RemoteLeader(links)
    if not links:
        return None
    return Pipeline(links, config.tensor_parallel) if config.pipeline_parallel > 1 else Leader(links)


def device_kind(config: WorkerConfig) -> str:
    """Return `cpu` or `cuda`. Raises ValueError if there is no such GPU."""
    return resolve_device(config.device).type


def _part(config: WorkerConfig, rank: int) -> Part | None:
    """Return which part of each of its layers the worker's process of a rank computes; None: all of it."""
    size = config.tensor_parallel
    return Part(rank % size, size) if size > 1 else None


def _stage(config: WorkerConfig, rank: int) -> Stage | None:
    """Return which layers the worker's process of a rank computes; None: all of them."""
    size = config.pipeline_parallel
    return Stage(rank // config.tensor_parallel, size) if size > 1 else None


def _log_threads(config: WorkerConfig, cores: Cores) -> None:
    if cores.pauses(config.threads):
        reason = "steps pause whenever they have used up the quota"
    elif config.place is None and config.num_processes > cores.most:
        reason = f"{config.processes_flags} are {config.num_processes} processes, which share the cores"
    else:
        log.info("threads", compute=config.threads, cores=str(cores))
        return
    log.warning("threads", compute=config.threads, cores=str(cores), reason=reason)


def _log_native_ops(built: BuiltEngine) -> None:
    model = built.runner.model
    library = native_library(model.device)
    if model.device.type == "cpu" and not library:
        reason = "none are built from these sources; python -m kernels.native.build does"
        log.warning("native_ops", used=False, reason=reason)
    else:
        used, whole = built.uses_native_ops, model.fusion.is_native
        log.info("native_ops", used=used, library=library, all_layers=whole)


def _log_fusion(report: FusionReport) -> None:
    if report.replaced:
        log.info("modules_fused", **report.replaced)
    else:
        log.warning("not_fused", reason=report.reason)


def _log_quantisation(quantised: Quantised) -> None:
    log.info(
        "weights_quantised",
        layers=quantised.num_layers,
        float_experts=quantised.num_float_experts,
        mb=round(quantised.num_bytes / MEBIBYTE, 1),
        float_mb=round(quantised.float_bytes / MEBIBYTE, 1),
    )


def _adapter_room(config: WorkerConfig) -> AdapterRoom:
    num_bytes = (config.lora_memory_mb or LORA_MEMORY_MB) * MEBIBYTE
    return AdapterRoom(num_bytes, config.lora_rank or LORA_RANK)


def _adapter_bytes(config: WorkerConfig) -> int:
    """Return the largest file of weights of an adapter that the memory for adapters could have room for.

    Its numbers have 8 bytes at most, and in memory 2 at least, where each process may have another part of
    them; 1 MiB is for the file's header.
    """
    return 4 * _adapter_room(config).num_bytes * config.num_processes + MEBIBYTE


def _log_adapters(model: Model) -> None:
    assert model.adapters is not None, "the caller has looked"
    log.info("adapter_slots", slots=model.adapters.num_slots, rank=model.adapters.rank)
    for name, digest in model.adapters.digests.items():
        log.info("adapter", name=name, digest=digest, rank=model.adapters.ranks[name])


def _proof_file(config: WorkerConfig, device: torch.device, dtype: str) -> ProofFile:
    """Return the file for the proof of this worker's model, which is not on the list."""
    key = ProofKey(
        weights=weights_digest(config.service.model, config.random_weights, config.quantisation),
        device=device_name(device),
        dtype=dtype,
        deterministic=config.deterministic,
        fusion=config.fusion,
        block_size=config.block_size,
        native_ops=native_library(device),
        code=own_code(),
    )
    return ProofFile(config.cache, key)


def _keep_proof(file: ProofFile, proof: Proof | None, *, is_new: bool) -> None:
    assert proof is not None, "a model off the list was built without a proof"
    if is_new:
        file.write(proof)
    log.info("model_proven", proof="made now" if is_new else "found", path=str(file.path), **asdict(proof))


def _measure(config: WorkerConfig, on_progress: OnProgress, runner: ModelRunner, name: str) -> Sweep:
    """Return what steps cost here: measured now, or by an earlier worker like this one."""
    seqs, budget = config.max_num_seqs, config.token_budget
    key = SweepKey(
        fingerprint=name,
        device=device_name(runner.model.device),
        dtype=str(runner.model.dtype),
        deterministic=config.deterministic,
        threads=torch.get_num_threads(),
        block_size=config.block_size,
        num_blocks=runner.pool.num_blocks,
        max_num_seqs=seqs,
        token_budget=budget,
        cuda_graphs=config.cuda_graphs,
        fusion=runner.model.is_fused,
        native_ops=native_library(runner.model.device),
        tensor_parallel=config.tensor_parallel,
        hosts=1 if config.place is None else config.place.size,
        pipeline_parallel=config.pipeline_parallel,
    )
    return cached_sweep(
        config.cache,
        key,
        lambda: sweep(runner, max_num_seqs=seqs, token_budget=budget, on_progress=on_progress),
        lambda samples: overstatement(samples, runner, max_num_seqs=seqs, token_budget=budget),
    )
