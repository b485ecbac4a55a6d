"""Perplexity sampling against theory, on a made-up distribution, and the tally of documents by perplexity."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, strategies as st

from auth.errors import ConfigError
from peer.config.data import Method, Sampling, ScorerConfig
from peer.data.selection.perplexity import (
    PerplexityTally,
    decide,
    default_factors,
    default_width,
    plan_sampling,
    probabilities,
    quartile_numbers,
    quartiles_of,
    solve_scale,
)


def test_documents_are_counted_by_quartile_and_in_bins() -> None:
    """What lies beyond the picture, or has no perplexity, counts in the last quartile and in no bin."""
    sample = np.linspace(1, 101, 1_001)
    tally = PerplexityTally(sample, (26.0, 51.0, 76.0))
    perplexities = np.array([10.0, 30.0, 60.0, 90.0, 5_000.0, np.inf])
    for _ in range(2):
        tally.add(perplexities, np.full(6, 0.5), np.array([True, False, True, False, False, False]))
    assert tally.parts["before"].tolist() == [2, 2, 2, 6]
    assert tally.parts["kept"].tolist() == [2, 0, 2, 0]
    assert tally.parts["expected"].tolist() == [1, 1, 1, 3]
    assert (tally.documents, tally.kept) == (12, 4)
    assert tally.bins["before"].sum() == 8
    assert (tally.density("kept") * np.diff(tally.edges)).sum() == pytest.approx(1)


def test_a_corpus_of_one_perplexity_can_be_counted() -> None:
    """And one of which nothing is kept."""
    tally = PerplexityTally(np.full(5, 7.0), (7.0, 7.0, 7.0))
    tally.add(np.full(5, 7.0), np.zeros(5), np.zeros(5, np.bool_))
    assert tally.density("before").sum() > 0
    assert tally.density("kept").sum() == 0


METHODS: tuple[Method, ...] = ("random", "stepwise", "gaussian")

MEDIAN, SPREAD = 400.0, 0.6  # of a log-normal distribution

DOCUMENTS = 100_000

TEXTS = [f"document {number}" for number in range(DOCUMENTS)]


def made_up(seed: int, documents: int = DOCUMENTS) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).lognormal(math.log(MEDIAN), SPREAD, documents)


def theory(method: Method, share: float) -> list[float]:
    """The expected share kept of each quartile, by integration over the distribution itself."""
    logarithms = NormalDist(math.log(MEDIAN), SPREAD)
    perplexities = np.exp([logarithms.inv_cdf((place + 0.5) / 20_000) for place in range(20_000)])
    first, third = (math.exp(logarithms.inv_cdf(place)) for place in (0.25, 0.75))
    if method == "random":
        weights = np.ones_like(perplexities)
    elif method == "stepwise":
        ranges = [first, MEDIAN - first, third - MEDIAN, 10 * third]
        weights = np.repeat([1 / size for size in ranges], 5_000)
    else:
        half = ((third - first) / 2 / MEDIAN) ** 2
        weights = 0.5 ** (((perplexities - MEDIAN) / MEDIAN) ** 2 / half)
    low, high = 0.0, 1e9 / weights.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1, middle * weights).mean() < share else (low, middle)
    return [float(part.mean()) for part in np.minimum(1, low * weights).reshape(4, -1)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_kept_shares_of_the_quartiles_are_those_of_theory(method: Method, share: float) -> None:
    """Within 2 % of all that is kept, planned on one sample and applied to other documents by their texts' hashes."""
    sampling = plan_sampling(method, made_up(1), share, ScorerConfig())
    perplexities = made_up(2)
    kept = decide(TEXTS, probabilities(sampling, perplexities))
    assert kept.mean() == pytest.approx(share, rel=0.02)
    assert sampling.quartiles is None or len(sampling.quartiles) == 3
    found = np.bincount(quartile_numbers(perplexities, quartiles_of(made_up(1)))[kept], minlength=4) / kept.sum()
    expected = np.array(theory(method, share)) / 4 / share
    np.testing.assert_allclose(found, expected, atol=0.02)


@pytest.mark.parametrize("method", METHODS)
@given(share=st.floats(0.001, 1.0), seed=st.integers(0, 100))
def test_the_expected_number_kept_is_the_target(method: Method, share: float, seed: int) -> None:
    """On the sample that the scale was solved for, exactly but for its rounding."""
    perplexities = made_up(seed, 500)
    kept = probabilities(plan_sampling(method, perplexities, share, ScorerConfig()), perplexities)
    assert kept.mean() == pytest.approx(share, rel=1e-4)
    assert ((kept >= 0) & (kept <= 1)).all()


@given(
    weights=st.lists(st.floats(0, 1e6).map(lambda weight: round(weight, 3)), min_size=1, max_size=50),
    share=st.floats(0.01, 1),
)
def test_the_scale_is_found_where_there_is_one_and_refused_where_not(weights: list[float], share: float) -> None:
    """No more can be kept than have a weight."""
    array = np.array(weights)
    if (array > 0).mean() < share * (1 - 1e-6):
        with pytest.raises(ConfigError, match="lower --target"):
            solve_scale(array, share)
    elif (array > 0).mean() > share * (1 + 1e-6):
        assert np.minimum(1, solve_scale(array, share) * array).mean() == pytest.approx(share)


def test_the_default_factors_are_bertins() -> None:
    """From its quartiles of Spanish: the second counts most, the last hardly."""
    factors = default_factors([536394.99320948, 662247.50212365, 919250.87225178])
    ranges = np.array([536394.99320948, 125852.50891417, 257003.37012813, 9192508.7225178])
    np.testing.assert_allclose(factors, ranges.min() / ranges, rtol=1e-5)


def test_the_gaussian_is_bertins_formula() -> None:
    """0.78 x exp(-((perplexity - median) / median)² / 4.5)."""
    sampling = Sampling(method="gaussian", scale=0.78, quartiles=(50.0, 100.0, 300.0), width=4.5)
    found = probabilities(sampling, np.array([100.0, 250.0, math.inf]))
    np.testing.assert_allclose(found, [0.78, 0.78 * math.exp(-(1.5**2) / 4.5), 0], atol=1e-12)


def test_the_default_width_halves_the_weight_at_the_quartiles() -> None:
    """Whatever the unit of the perplexities."""
    for unit in (1.0, 1e5):
        quartiles = (50 * unit, 100 * unit, 150 * unit)
        sampling = Sampling(method="gaussian", scale=1.0, quartiles=quartiles, width=default_width(quartiles))
        np.testing.assert_allclose(probabilities(sampling, np.array(quartiles)), [0.5, 1, 0.5], rtol=1e-5)


def test_equal_perplexities_can_be_sampled() -> None:
    """Quartiles that coincide are no reason to fail."""
    same = np.full(100, 7.0)
    for method in METHODS:
        assert probabilities(plan_sampling(method, same, 0.3, ScorerConfig()), same).mean() == pytest.approx(
            0.3, rel=1e-4
        )


def test_every_process_decides_alike() -> None:
    """The decision depends on nothing but the text and its probability: it is fixed for ever."""
    assert np.flatnonzero(decide(TEXTS[:20], np.full(20, 0.3))).tolist() == [4, 7, 9, 11, 13]


def test_a_documents_chance_decides_about_it_alone() -> None:
    """Whoever is kept with a small chance is kept with a greater one, too; 0 keeps none, 1 all."""
    few, many = (decide(TEXTS[:1000], np.full(1000, chance)) for chance in (0.2, 0.6))
    assert not (few & ~many).any()
    assert not decide(TEXTS[:1000], np.zeros(1000)).any()
    assert decide(TEXTS[:1000], np.ones(1000)).all()
