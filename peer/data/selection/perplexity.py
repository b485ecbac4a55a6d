"""BERTIN's perplexity sampling as pure functions, which select documents by their perplexities.

De la Rosa et al. 2022, "BERTIN: Efficient Pre-Training of a Spanish Language Model using Perplexity
Sampling", section 2. Text of low perplexity is repetitive, text of high perplexity is noisy, so
documents of the middle quartiles are preferred. A method gives each perplexity a weight, and one
common scale turns weights into probabilities. Unlike BERTIN, this module computes the scale at
which the expected number of kept documents equals the requested number.
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
LAST_WIDTHS = 10  # BERTIN's width of the unbounded last quartile, in multiples of the third quartile
LEAST_WEIGHT = 1e-300  # positive, so that even a target of all documents can be met
LEAST_WIDTH = 1e-6  # smallest relative width of a quartile, for corpora of very similar documents
DIGITS = 6  # significant digits of the numbers in the run file
BINS = 120  # number of histogram bins
SHOWN = 0.97  # share of the documents shown in the histogram, without the long tail


def quartiles_of(perplexities: Floats) -> tuple[float, float, float]:
    """Return the three quartiles of perplexities (documents,), rounded to `DIGITS` digits."""
    first, second, third = (_rounded(value) for value in np.quantile(perplexities, (0.25, 0.5, 0.75)))
    return first, second, third


def quartile_numbers(perplexities: Floats, quartiles: Sequence[float]) -> NDArray[np.int64]:
    """Return quartile numbers 0 to 3, (documents,); a boundary belongs to the lower quartile."""
    return np.searchsorted(np.asarray(quartiles), perplexities, side="left").astype(np.int64)


def default_factors(quartiles: Sequence[float]) -> tuple[float, float, float, float]:
    """Return BERTIN's quartile weights: the narrower the quartile, the larger; the largest is 1."""
    first, second, third = quartiles
    widths = np.maximum([first, second - first, third - second, LAST_WIDTHS * third], LEAST_WIDTH * first)
    one, two, three, four = (_rounded(value) for value in widths.min() / widths)
    return one, two, three, four


def default_width(quartiles: Sequence[float]) -> float:
    """Return the width at which documents at the quartiles have about half the median's weight.

    BERTIN's width of 4.5 fits Spanish text under its own model; other perplexities differ.
    """
    first, second, third = quartiles
    distance = (third - first) / 2 / second
    return _rounded(max(distance**2 / np.log(2), 1e-9))


def probabilities(sampling: Sampling, perplexities: Floats) -> Floats:
    """Return the probability of keeping each document, (documents,)."""
    return np.minimum(1.0, sampling.scale * _weights(sampling, perplexities))


def decide(documents: Sequence[str], chances: Floats) -> NDArray[np.bool_]:
    """Return a mask (documents,) of the kept documents, determined by their chances and texts."""
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
    """Plan a sampling that keeps `share` of a corpus. Raises `ConfigError` if impossible."""
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
    """Return the scale for which the mean of min(1, scale * weight) is `share`.

    Raises `ConfigError` if there is no such scale. With the k largest products clipped to 1, the
    mean is linear in the scale, so all values of k are tried at once.
    """
    falling = np.sort(weights)[::-1]
    positive = falling[falling > 0]
    if share * len(weights) > len(positive) * (1 + 1e-9):
        raise ConfigError(
            f"The target is {share:.1%} of the documents, but only {len(positive) / len(weights):.1%} of them have a "
            "weight above 0: lower --target, or raise the factors or the width."
        )
    rest = positive[::-1].cumsum()[::-1]  # suffix sums of the weights
    scales = (share * len(weights) - np.arange(len(positive))) / rest
    fitting = np.flatnonzero(scales * positive <= 1 + 1e-12)
    return float(scales[fitting[0]]) if len(fitting) else float(1 / positive[-1])


def _weights(sampling: Sampling, perplexities: Floats) -> Floats:
    """Return the method's weight of each document, (documents,).

    The Gaussian weight is exp(-distance² / width), where distance = (perplexity - median) / median.
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
    """Document counts before and after sampling, by quartile and histogram bin.

    `manyhands corpus sample` displays the tally. Memory use does not grow with the corpus.
    """

    def __init__(self, sample: Floats, quartiles: tuple[float, float, float]) -> None:
        self.quartiles = quartiles
        low, high = np.quantile(sample, (0.0, SHOWN))
        self.edges: Floats = np.linspace(low, max(high, low * (1 + 1e-6)), BINS + 1)
        self.bins = {name: np.zeros(BINS) for name in ("before", "expected", "kept")}  # the last bin is unbounded
        self.parts = {name: np.zeros(4) for name in ("before", "expected", "kept")}

    def add(self, perplexities: Floats, chances: Floats, kept: NDArray[np.bool_]) -> None:
        """Add documents to the counts; each argument is an array with one value per document."""
        parts = quartile_numbers(perplexities, self.quartiles)
        inner = (perplexities >= self.edges[0]) & (perplexities <= self.edges[-1])
        bins = np.clip(np.searchsorted(self.edges, perplexities, side="right") - 1, 0, BINS - 1)
        for name, weights in {"before": np.ones(len(kept)), "expected": chances, "kept": kept.astype(float)}.items():
            self.parts[name] += np.bincount(parts, weights, 4)
            self.bins[name] += np.bincount(bins[inner], weights[inner], BINS)

    def density(self, name: str) -> Floats:
        """Return the density per histogram bin of the documents counted as `name`, for a plot."""
        total = self.parts[name].sum()
        density: Floats = self.bins[name] / max(total, 1e-12) / np.diff(self.edges)
        return density

    @property
    def documents(self) -> int:
        return int(self.parts["before"].sum())

    @property
    def kept(self) -> int:
        return int(self.parts["kept"].sum())
