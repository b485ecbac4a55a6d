"""An average that no single sender moves far."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from peer.reduction.centered_clipping import centered_clipping, weighted_median
from peer.reduction.combine import WeightedPart, weighted_mean

VALUES = 64


def senders(count: int, seed: int = 0, size: float = 1.0) -> list[WeightedPart]:
    """Honest ones: the same gradient of norm 1 or so, and noise about as large."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(VALUES, generator=generator) / 8
    noise = [torch.randn(VALUES, generator=generator) / 8 for _ in range(count)]
    return [WeightedPart(index, size * (common + own), 4.0) for index, own in enumerate(noise)]


def norm(values: torch.Tensor) -> float:
    """L2."""
    return float(values.norm())


def test_honest_senders_keep_their_mean() -> None:
    """Where nobody is far from the centre, the result is the plain mean."""
    honest = senders(5)
    mean = weighted_mean(0, honest)
    found = centered_clipping(honest, mean * 0.9, norm(mean), radius=5.0, iterations=1)
    assert torch.allclose(found, mean, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.floats(1.0, 1e6), st.booleans())
def test_one_sender_moves_the_average_by_a_radius_at_most(size: float, flipped: bool) -> None:
    """However large its numbers are; so the direction stays the honest ones'."""
    honest = senders(5)
    mean = weighted_mean(0, honest)
    attack = WeightedPart(5, mean * (-size if flipped else size), 4.0)
    clean = centered_clipping(honest, mean, norm(mean), radius=1.0, iterations=1)
    found = centered_clipping([*honest, attack], mean, norm(mean), radius=1.0, iterations=1)
    assert norm(found - clean) <= norm(mean) / 6**0.5 + norm(mean - clean) + 1e-6


def test_without_a_history_the_median_is_the_centre() -> None:
    """A sender of enormous numbers does not set the first average."""
    honest = senders(4)
    found = centered_clipping(
        [*honest, WeightedPart(4, torch.full((VALUES,), 1e6), 4.0)], None, 0.0, radius=1.0, iterations=3
    )
    assert norm(found - weighted_mean(0, honest)) < 2 * norm(weighted_mean(0, honest))


def test_a_centre_without_a_usual_norm_is_no_history() -> None:
    """Averages of zero only say nothing of how far the next ones may be from them."""
    honest = senders(4)
    found = centered_clipping(honest, torch.zeros(VALUES), 0.0, radius=1.0, iterations=3)
    assert torch.equal(found, centered_clipping(honest, None, 0.0, radius=1.0, iterations=3))


def test_few_samples_have_a_wider_radius() -> None:
    """A small batch's gradient is noisy; its deviation counts in full where an equal one's would be cut."""
    centre = torch.zeros(VALUES)
    small = WeightedPart(0, torch.full((VALUES,), 1.0), 1.0)
    large = WeightedPart(1, torch.zeros(VALUES), 99.0)
    found = centered_clipping([small, large], centre, usual=1.0, radius=1.0, iterations=1)
    assert torch.allclose(found, torch.full((VALUES,), 0.01))


def test_the_median_is_by_weight() -> None:
    """A heavy sender outweighs two light ones, value by value."""
    light = [WeightedPart(0, torch.tensor([1.0, 5.0]), 1.0), WeightedPart(1, torch.tensor([2.0, 6.0]), 1.0)]
    assert weighted_median([*light, WeightedPart(2, torch.tensor([9.0, 0.0]), 3.0)]).tolist() == [9.0, 0.0]
    assert weighted_median([*light, WeightedPart(2, torch.tensor([9.0, 0.0]), 1.0)]).tolist() == [2.0, 5.0]


@pytest.mark.parametrize("weight", [0.0])
def test_nobody_weighs(weight: float) -> None:
    """Without any sample there is no average."""
    assert centered_clipping([WeightedPart(0, torch.ones(2), weight)], None, 0.0, 1.0, 1).isnan().all()
