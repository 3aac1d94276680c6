"""The settings that an engine is built from."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.model.adapters.attaching import AdapterRoom
from engine.model.parallel.part import Part
from engine.model.parallel.stage import Stage
from engine.model.quantised.kept_numbers import KeptOf
from engine.model.quantised.quantisation import Quantisation
from engine.proof.proving import Proof
from engine.speculation import Speculation


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """A model, the memory that it is served from, and how its steps are computed."""

    model: Path
    dtype: torch.dtype
    device: torch.device
    block_size: int
    num_blocks: int | None
    """None: as many as fit into `kv_memory_mb`."""
    kv_memory_mb: int | None
    """None: CPU_MEBIBYTES on a CPU, the free memory on a GPU."""
    max_num_seqs: int
    token_budget: int
    policy: str
    deterministic: bool = False
    random_weights: int | None = None
    """The seed to draw weights from; None: the checkpoint's are read."""
    quantisation: Quantisation = Quantisation.NONE
    kept_of: KeptOf | None = None
    """Where it is kept what weights are rounded to; None: nowhere."""
    cuda_graphs: bool = True
    """Whether decode-only steps are recorded at the start, and replayed, on a GPU."""
    fusion: bool = True
    """Whether the model's layers are fused, where they fit.

    On a CPU they are fused only if native ops were built for it (`kernels.native`), in the dtypes of these;
    those of a `deterministic` model only if these compute all of them, and on a GPU never.
    """
    speculation: Speculation = Speculation.NONE
    """Where drafts of the next tokens come from, which steps verify, before those of `draft_model`."""
    draft_model: Path | None = None
    """A smaller model with the same vocabulary, which drafts; the other settings hold for it too."""
    prove_model: bool = False
    """Whether a model of an architecture that is not listed is loaded, and proven unless `proof` is given."""
    proof: Proof | None = None
    """The proof that an earlier start made of the same model on this machine."""
    adapters: tuple[tuple[str, Path], ...] = ()
    """The name of each LoRA adapter, and the folder of its files."""
    adapter_room: AdapterRoom | None = None
    """Memory for adapters that are loaded while the engine runs; then there are no others."""
    loadable: Container[str] = ()
    """The digests of these."""
    available_bytes: Callable[[], int] | None = None
    """Returns the memory that is left on this machine; None: a model on a CPU is loaded without a check."""
    part: Part | None = None
    """The part of every layer that this process computes; None: all of it."""
    stage: Stage | None = None
    """The layers that this process computes; None: all of them."""
    shares_memory: bool = True
    """Whether this process shares memory with those that compute the other parts, all of them on CPUs."""

    @property
    def num_processes(self) -> int:
        """The number of processes that compute the steps."""
        return (1 if self.part is None else self.part.size) * (1 if self.stage is None else self.stage.size)
