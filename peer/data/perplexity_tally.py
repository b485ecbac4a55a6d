"""What became of a corpus, counted by perplexity: for the table and the pictures of `manyhands corpus sample`.

Counts only, so that a corpus of any length takes the same memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peer.data.perplexity_sampling import Floats, quartile_numbers

BINS = 120
SHOWN = 0.97  # of the documents; the rest, with perplexities without end, would press the others together


class PerplexityTally:
    """Documents before and after, by quartile and in the bins of a histogram."""

    def __init__(self, sample: Floats, quartiles: tuple[float, float, float]) -> None:
        self.quartiles = quartiles
        low, high = np.quantile(sample, (0.0, SHOWN))
        self.edges: Floats = np.linspace(low, max(high, low * (1 + 1e-6)), BINS + 1)
        self.bins = {name: np.zeros(BINS) for name in ("before", "expected", "kept")}  # the last bin has no end
        self.parts = {name: np.zeros(4) for name in ("before", "expected", "kept")}

    def add(self, perplexities: Floats, chances: Floats, kept: NDArray[np.bool_]) -> None:
        """Count (documents,)."""
        parts = quartile_numbers(perplexities, self.quartiles)
        inner = (perplexities >= self.edges[0]) & (perplexities <= self.edges[-1])
        bins = np.clip(np.searchsorted(self.edges, perplexities, side="right") - 1, 0, BINS - 1)
        for name, weights in {"before": np.ones(len(kept)), "expected": chances, "kept": kept.astype(float)}.items():
            self.parts[name] += np.bincount(parts, weights, 4)
            self.bins[name] += np.bincount(bins[inner], weights[inner], BINS)

    def density(self, name: str) -> Floats:
        """The share of these documents in each bin, by perplexity: what a picture shows."""
        total = self.parts[name].sum()
        density: Floats = self.bins[name] / max(total, 1e-12) / np.diff(self.edges)
        return density

    @property
    def documents(self) -> int:
        return int(self.parts["before"].sum())

    @property
    def kept(self) -> int:
        return int(self.parts["kept"].sum())
