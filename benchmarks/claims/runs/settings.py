"""How long and how often each claim is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings; all arms get the same seeds, so figures can be compared seed by seed."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    span_s: float = 120.0
    """Seconds of simulated arrivals; the first tenth of the requests is dropped."""
    precision: float = 0.03
    """Relative precision of rates that are searched for."""
    is_quick: bool = False
    """Fewer cells and rates: to check for changes, not to publish."""

    @property
    def words(self) -> str:
        """The load and seeds in words, for tables."""
        return f"{self.span_s:g} s of Poisson arrivals, seeds {', '.join(map(str, self.seeds))}"

    def __post_init__(self) -> None:
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds are {self.seeds}; accepted: whole numbers from 0, each once")
