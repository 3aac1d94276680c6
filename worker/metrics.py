"""A worker's metrics, each defined once. Histograms in seconds, on this process's monotonic clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from engine.core.report import StepReport
from runtime.process.metric_names import Renamed, vllm_labels
from scheduling.cost_model import CostModel
from scheduling.memory.tiers import Tier

NAMESPACE = "baton"
STEP_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
HANDOFF_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class WorkerMetrics:
    """One registry per process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._step = self._histogram(
            "engine_step_seconds", "One step: packing, model, sampling and post-processing", STEP_SECONDS
        )
        self._running = self._gauge("running_sequences", "Choices that are decoding")
        self._waiting = self._gauge(
            "waiting_sequences", "Choices that wait for prefill or for KV from another worker"
        )
        self._pending = self._gauge(
            "pending_prefill_tokens", "Prompt tokens assigned to this worker and not computed yet"
        )
        self._free = self._gauge("kv_free_blocks", "KV blocks that no sequence uses, cached ones included")
        self._cached = self._gauge("kv_cached_blocks", "Free KV blocks that hold a cached prefix")
        self._context = self._gauge("kv_context_tokens", "Tokens whose KV belongs to running sequences")
        self.tokens = self._counter("output_tokens", "Tokens sampled and reported")
        self.preempted = self._counter(
            "preempted_sequences", "Sequences preempted because KV blocks ran short"
        )
        self.recomputed = self._counter("recomputed_tokens", "Tokens computed again after a preemption")
        self._drafted = self._counter(
            "drafted_tokens", "Drafted tokens that steps verified, by drafter: lookup, model", ["drafter"]
        )
        self._accepted_drafts = self._counter(
            "accepted_draft_tokens", "Drafted tokens that became output, by drafter", ["drafter"]
        )
        self._drafting = self._counter(
            "drafting_seconds", "Time that the draft model computed, which is no part of the steps"
        )
        self.step_errors = self._counter("step_errors", "Steps that failed for their whole batch")
        self.refused = self._counter("refused_commands", "Commands that this worker refused")
        self._cost_trusted = self._gauge(
            "worker_cost_trusted", "1 while steps are packed by the cost model, 0 while by a fixed budget"
        )
        self._cost_q95 = self._gauge(
            "worker_cost_ratio_q95", "95th percentile of actual divided by predicted step time"
        )
        self.cost_distrusts = self._counter(
            "worker_cost_distrusts", "Times that the cost model was found too inaccurate to use"
        )
        self.cost_fits = self._counter("worker_cost_fits", "Cost models fitted while serving")
        self.loop_errors = self._counter(
            "loop_errors", "Unexpected errors, by the place that caught them", ["where"]
        )
        self.clock_offset = self._gauge(
            "clock_offset_seconds", "How far this machine's clock is ahead of Redis', compared once a minute"
        )
        self.handoff = self._histogram(
            "kv_handoff_seconds",
            "Duration of a handoff, from first fetch to acknowledgement",
            HANDOFF_SECONDS,
        )
        self.handoff_exposed = self._histogram(
            "kv_handoff_exposed_seconds",
            "Part of a handoff after the sender had computed the whole prompt",
            HANDOFF_SECONDS,
        )
        self.kv_bytes = self._counter(
            "kv_bytes", "Bytes of KV fetched, by transport: shm, grpc, nixl, cuda_ipc", ["transport"]
        )
        self.corrupt = self._counter(
            "kv_blocks_corrupt", "Fetched blocks that did not verify and were recomputed"
        )
        self.skipped = self._counter(
            "kv_blocks_skipped", "Blocks not sent because the receiver had them cached"
        )
        self._host_blocks = self._counter(
            "kv_host_blocks",
            "Blocks on their way to and from --kv-host-memory-mb, by outcome: kept, read, evicted, dropped, "
            "refused",
            ["outcome"],
        )
        self._host_bytes = self._counter(
            "kv_host_bytes", "Bytes of KV copied to --kv-host-memory-mb and read from it", ["outcome"]
        )
        self._disk_blocks = self._counter(
            "kv_disk_blocks",
            "Blocks on their way to and from --kv-disk, by outcome: written, read, dropped, refused",
            ["outcome"],
        )
        self._disk_errors = self._counter("kv_disk_errors", "Calls that the disk of --kv-disk failed")
        self._disk_bytes = self._counter(
            "kv_disk_bytes", "Bytes of KV written to --kv-disk and read from it", ["outcome"]
        )
        self.fetches = self._counter(
            "kv_prefix_fetches",
            "Prefixes asked of other workers, by outcome: completed, shortened (fewer blocks were there), "
            "corrupt, refused, timed_out, sender_lost",
            ["outcome"],
        )
        self.fetched = self._counter(
            "kv_prefix_blocks_fetched", "Blocks fetched from other workers instead of being computed"
        )
        self.lent = self._counter("kv_prefix_blocks_lent", "Blocks held for other workers to fetch")
        self.adapters = self._counter(
            "adapters", "LoRA adapters of --lora-dir, by outcome: loaded, evicted, refused", ["outcome"]
        )
        self.handoffs = self._counter("kv_handoffs", "Handoffs by how they ended", ["outcome"])

    def add_vllm_names(
        self, model_name: str, block_size: int, num_blocks: int, num_free: Callable[[], int]
    ) -> None:
        """Serve what a worker measures under vLLM's names too; its routers serve the rest."""
        labels, registry = vllm_labels(model_name), self.registry
        for source, name in (
            (self._running, "num_requests_running"),
            (self._waiting, "num_requests_waiting"),
            (self.preempted, "num_preemptions"),
        ):
            registry.register(Renamed(source, f"vllm:{name}", labels))
        documentation = "Part of the KV blocks that sequences use, 0 to 1"
        usage = Gauge("vllm:kv_cache_usage_perc", documentation, tuple(labels), registry=registry)
        usage.labels(**labels).set_function(lambda: 1 - num_free() / num_blocks)
        sizes = {"block_size": f"{block_size}", "num_gpu_blocks": f"{num_blocks}"} | labels
        documentation = "1, with the sizes of the KV cache as labels"
        Gauge("vllm:cache_config_info", documentation, tuple(sizes), registry=registry).labels(**sizes).set(1)

    def observe(self, report: StepReport) -> None:
        if report.step_seconds:
            self._step.observe(report.step_seconds)
        if report.tokens.token_ids:
            self.tokens.inc(len(report.tokens.token_ids))
        self.preempted.inc(len(report.preempted))
        self.recomputed.inc(report.recomputed_tokens)
        for drafter, counts in report.drafts.items():
            self._drafted.labels(drafter.value).inc(counts.drafted)
            self._accepted_drafts.labels(drafter.value).inc(counts.accepted)
        self._drafting.inc(report.drafting_seconds)
        load = report.load
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._pending.set(load.pending_prefill_tokens)
        self._free.set(load.free_blocks)
        self._cached.set(load.cached_blocks)
        self._context.set(load.context_tokens)

    def count_tier(self, tier: Tier, outcome: str, num_blocks: int, num_bytes: int) -> None:
        """Count what happened to blocks on their way to or from a tier; called on any thread."""
        is_host = tier is Tier.HOST
        if outcome == "failed":
            self._disk_errors.inc()
        else:
            (self._host_blocks if is_host else self._disk_blocks).labels(outcome).inc(num_blocks)
        if num_bytes:
            (self._host_bytes if is_host else self._disk_bytes).labels(outcome).inc(num_bytes)

    def observe_cost(self, cost: CostModel) -> None:
        self._cost_trusted.set(cost.is_trusted)
        self._cost_q95.set(cost.ratio_q95)

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(name, documentation, namespace=NAMESPACE, registry=self.registry)

    def _counter(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, documentation, labels, namespace=NAMESPACE, registry=self.registry)

    def _histogram(self, name: str, documentation: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, documentation, namespace=NAMESPACE, registry=self.registry, buckets=buckets)
