"""The state that the sections of a run share: the device, the sizes, the figures so far, and an engine."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu.setting import model_dir
from benchmarks.gpu.setting.floors import Ceilings
from benchmarks.gpu.setting.paged import BLOCK_SIZE
from benchmarks.gpu.setting.sizes import LLAMA_8B, Sizes
from engine.build import BuiltEngine, EngineSettings, build, resolve_dtype
from engine.model.quantisation import Quantisation
from reporting.section import Goal
from scheduling.policies import DEFAULT


class NotMeasured(Exception):
    """A section cannot run here; the reason is its message."""


@dataclass
class Bench:
    """The state of a run. `folder` has files for processes; `seed` draws weights, prompts and inputs."""

    device: torch.device
    sizes: Sizes
    folder: Path
    seed: int
    ceilings: Ceilings | None = None
    found: dict[str, float] = field(default_factory=dict)
    """Figures by name, for the table at the end."""
    _engine: BuiltEngine | None = None

    @property
    def dtype(self) -> torch.dtype:
        return resolve_dtype("auto", self.device)

    @property
    def is_comparable(self) -> bool:
        """True if figures are comparable with published ones: on a GPU, with the same model."""
        return self.device.type == "cuda" and self.sizes is LLAMA_8B

    def goals(self, *goals: Goal) -> tuple[Goal, ...]:
        """Return the goals if figures are comparable; otherwise none."""
        return goals if self.is_comparable else ()

    @property
    def limits(self) -> Ceilings:
        """The ceilings; raises NotMeasured without them."""
        if self.ceilings is None:
            raise NotMeasured("its floors need the section `ceilings` in the same run")
        return self.ceilings

    @property
    def model(self) -> Path:
        """The model's directory, written at first use."""
        directory = self.folder / "model"
        return directory if directory.is_dir() else model_dir.write(self.sizes.model, directory)

    def generator(self) -> torch.Generator:
        """Return a new source of random numbers; all of a run are alike."""
        return torch.Generator(device=self.device).manual_seed(self.seed)

    def randn(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Return normal random numbers."""
        return torch.randn(shape, generator=generator, device=self.device).to(self.dtype)

    def engine(self) -> BuiltEngine:
        """Return the engine that sections share, as a worker would build it by default."""
        if self._engine is None:
            self._engine = self.build()
        return self._engine

    def build(
        self, *, deterministic: bool = False, quantisation: Quantisation = Quantisation.NONE
    ) -> BuiltEngine:
        """Build another engine. Release the shared one first, since it takes all memory."""
        assert self._engine is None, "the shared engine is in memory"
        return build(
            EngineSettings(
                model=self.model,
                dtype=self.dtype,
                device=self.device,
                block_size=BLOCK_SIZE,
                num_blocks=None,
                kv_memory_mb=None,
                max_num_seqs=self.sizes.max_num_seqs,
                token_budget=self.sizes.token_budget,
                policy=DEFAULT,
                deterministic=deterministic,
                random_weights=self.seed,
                quantisation=quantisation,
            )
        )

    def release(self) -> None:
        """Give back the shared engine's memory."""
        self._engine = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
