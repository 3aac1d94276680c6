"""How long and how often everything is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """The same seeds in every arm, so that figures can be compared seed by seed."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    span_s: float = 120.0
    """Of simulated arrivals; the first tenth of the requests is dropped."""
    precision: float = 0.03
    """Of a rate that is searched for."""
    is_quick: bool = False
    """Fewer cells and rates: to see whether something moved, not to publish."""

    @property
    def words(self) -> str:
        """The load, as tables say it."""
        return f"{self.span_s:g} s of Poisson arrivals, seeds {', '.join(map(str, self.seeds))}"

    def __post_init__(self) -> None:
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds are {self.seeds}; accepted: whole numbers from 0, each once")
