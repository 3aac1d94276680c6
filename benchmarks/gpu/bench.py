"""The state that the sections of a run share: the device, the sizes, the figures so far, and an engine."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.gpu import anchors
from benchmarks.gpu.floors import Ceilings
from benchmarks.gpu.sizes import BLOCK_SIZE, LLAMA_8B, ModelShape, Sizes
from engine.building.build import BuiltEngine, build
from engine.building.settings import EngineSettings
from engine.calibration.dtype import resolve_dtype
from engine.model.quantised.quantisation import Quantisation
from scheduling.policies import DEFAULT
from sim.reporting.section import Section, table

Columns = Mapping[str, Callable[[Any], object]]
"""The columns of a table by header, each with the function that shows a row in it."""


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
        return resolve_dtype(None, self.device, {}).dtype

    @property
    def is_comparable(self) -> bool:
        """True if figures are comparable with published ones: on a GPU, with the same model."""
        return self.device.type == "cuda" and self.sizes.model == LLAMA_8B.model

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
        if not directory.is_dir():
            write_model(self.sizes.model, directory)
        return directory

    def section(
        self,
        title: str,
        method: str,
        columns: Columns,
        data: Mapping[str, Mapping[Any, Any]],
        figures: Mapping[str, float],
    ) -> Section:
        """Record the figures, and return a section with their goals if they are comparable.

        `data`, for the JSON, has the table's rows under one name; the first column shows their names.
        """
        self.found.update(figures)
        goals = tuple(anchors.goals(figures)) if self.is_comparable else ()
        ((_, rows),) = data.items()
        table_rows = [{"name": name, **row} for name, row in rows.items()]
        return Section(title, method, goals, (table(table_rows, columns),), data)

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


def write_model(shape: ModelShape, directory: Path) -> None:
    """Write config.json and a tokenizer with a token for each id: bytes first, then made-up words."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(shape.config, indent=1), encoding="utf-8")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: shape.vocab]
    words = (f"w{number}" for number in range(shape.vocab - len(alphabet)))
    vocab = {token: place for place, token in enumerate([*alphabet, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
