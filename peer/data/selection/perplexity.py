"""BERTIN's perplexity sampling as pure functions: which documents to keep, given how a language model finds them.

De la Rosa et al. 2022, "BERTIN: Efficient Pre-Training of a Spanish Language Model using Perplexity Sampling",
section 2: text of the lowest perplexity is repetitive, of the highest noise; so documents of the middle quartiles are
preferred. A method gives each perplexity a weight, and one common scale makes probabilities of the weights. What is
added here: the scale is solved for, so that the expected number kept is the number that was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from auth.errors import ConfigError
from peer.config.data import Method, Sampling, ScorerConfig
from peer.data.selection.hashing import uniform

Floats = NDArray[np.float64]
SALT = "sampling"
LAST_WIDTHS = 10  # BERTIN takes the last quartile, which has no end, to be ten times as wide as the third's bound
LEAST_WEIGHT = 1e-300  # so that a target of everything can be met
LEAST_WIDTH = 1e-6  # of a quartile, in parts of the first one's bound: where many documents are alike
DIGITS = 6  # of the numbers in the run file
BINS = 120  # of the histogram
SHOWN = 0.97  # of the documents; the rest, with perplexities without end, would press the others together


def quartiles_of(perplexities: Floats) -> tuple[float, float, float]:
    """The three perplexities that divide the (documents,) in four equal parts, in `DIGITS` digits."""
    first, second, third = (_rounded(value) for value in np.quantile(perplexities, (0.25, 0.5, 0.75)))
    return first, second, third


def quartile_numbers(perplexities: Floats, quartiles: Sequence[float]) -> NDArray[np.int64]:
    """0 to 3 for each of the (documents,); one on a bound belongs to the part below it."""
    return np.searchsorted(np.asarray(quartiles), perplexities, side="left").astype(np.int64)


def default_factors(quartiles: Sequence[float]) -> tuple[float, float, float, float]:
    """BERTIN's weights of the quartiles: what lies dense counts more; the greatest is 1."""
    first, second, third = quartiles
    widths = np.maximum([first, second - first, third - second, LAST_WIDTHS * third], LEAST_WIDTH * first)
    one, two, three, four = (_rounded(value) for value in widths.min() / widths)
    return one, two, three, four


def default_width(quartiles: Sequence[float]) -> float:
    """A width that gives a document as far from the median as the quartiles are, on average, half the median's weight.

    BERTIN's 4.5 fitted its model's perplexities of Spanish; those of others spread more or less.
    """
    first, second, third = quartiles
    distance = (third - first) / 2 / second
    return _rounded(max(distance**2 / np.log(2), 1e-9))


def probabilities(sampling: Sampling, perplexities: Floats) -> Floats:
    """Return the probability with which each of the (documents,) is kept."""
    return np.minimum(1.0, sampling.scale * _weights(sampling, perplexities))


def decide(documents: Sequence[str], chances: Floats) -> NDArray[np.bool_]:
    """Decide which of the (documents,) are kept: the same on every machine, for each one's own text alone decides."""
    kept = chances >= 1
    for index in np.flatnonzero((chances > 0) & ~kept).tolist():
        kept[index] = uniform(documents[index], SALT) < chances[index]
    return kept


def plan_sampling(
    method: Method,
    perplexities: Floats,
    share: float,
    scorer: ScorerConfig,
    factors: Sequence[float] | None = None,
    width: float | None = None,
) -> Sampling:
    """The section that keeps `share` of a corpus whose documents' perplexities are like these; raises `ConfigError`."""
    quartiles = quartiles_of(perplexities)
    shapes: Mapping[Method, Mapping[str, object]] = {
        "random": {},
        "stepwise": {"quartiles": quartiles, "factors": tuple(factors or default_factors(quartiles))},
        "gaussian": {"quartiles": quartiles, "width": width or default_width(quartiles)},
    }
    unscaled = Sampling.model_validate({"method": method, "scale": 1.0, "scorer": scorer, **shapes[method]})
    scale = solve_scale(_weights(unscaled, perplexities), share)
    return unscaled.model_copy(update={"scale": _rounded(scale)})


def solve_scale(weights: Floats, share: float) -> float:
    """The scale for which min(1, scale x weight) is `share` on average; raises `ConfigError` if there is none.

    With the k greatest weights cut off at 1 the mean is linear in the scale; so each k is tried, all at once.
    """
    falling = np.sort(weights)[::-1]
    positive = falling[falling > 0]
    if share * len(weights) > len(positive) * (1 + 1e-9):
        raise ConfigError(
            f"The target is {share:.1%} of the documents, but only {len(positive) / len(weights):.1%} of them have a "
            "weight above 0: lower --target, or raise the factors or the width."
        )
    rest = positive[::-1].cumsum()[::-1]  # the sum of all weights from the k-th on
    scales = (share * len(weights) - np.arange(len(positive))) / rest
    fitting = np.flatnonzero(scales * positive <= 1 + 1e-12)
    return float(scales[fitting[0]]) if len(fitting) else float(1 / positive[-1])


def _weights(sampling: Sampling, perplexities: Floats) -> Floats:
    """The method's weight for each of the (documents,).

    A bell falls off with the distance from the median, measured in medians, as exp(-distance² / width).
    """
    if sampling.method == "random":
        return np.ones_like(perplexities)
    assert sampling.quartiles is not None
    if sampling.method == "stepwise":
        return np.asarray(sampling.factors)[quartile_numbers(perplexities, sampling.quartiles)]
    assert sampling.width is not None
    median = sampling.quartiles[1]
    weights = np.exp(-(((perplexities - median) / median) ** 2) / sampling.width)
    return np.maximum(weights, LEAST_WEIGHT)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


class PerplexityTally:
    """Documents before and after, by quartile and in the bins of a histogram, as `manyhands corpus sample` shows them.

    Counts only, so that a corpus of any length takes the same memory.
    """

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
