"""What the benchmark of lying members combines."""

from __future__ import annotations

import pytest
import torch

from benchmarks.trust.liars import ATTACKS, MEMBERS, WAYS, Combiner, small_run
from peer.reduction.screening import LEAST_ROUNDS

ALIKE = [8.0] * MEMBERS
STEPS = 20


@pytest.mark.parametrize("way", WAYS)
def test_equal_gradients_are_their_own_average(way: str) -> None:
    """Whoever combines, and in parts of any size: what all bring comes out in its own shapes."""
    gradients = [torch.linspace(-0.01, 0.01, 50_000).view(200, 250), torch.full((3,), 0.001)]
    averages = Combiner(way, small_run(STEPS)).average([gradients] * MEMBERS, ALIKE, ALIKE)
    for average, brought in zip(averages, gradients, strict=True):
        torch.testing.assert_close(average, brought, rtol=1e-3, atol=1e-6)


def test_only_the_plain_average_follows_a_thousandfold_gradient() -> None:
    """One in ten of them makes the plain average a hundred times as large, the others nearly as without."""
    honest = [torch.full((1000,), 0.01)]
    lie = [ATTACKS["1000-fold"].scale * tensor for tensor in honest]
    norms = {}
    for way in WAYS:
        combiner = Combiner(way, small_run(STEPS))
        for _ in range(LEAST_ROUNDS):  # until it is known what is usual
            combiner.average([honest] * MEMBERS, ALIKE, ALIKE)
        norms[way] = combiner.average([lie, *[honest] * (MEMBERS - 1)], ALIKE, ALIKE)[0].abs().mean()
    assert norms["plain"] > 0.9
    assert norms["screened"] < 0.05
    assert norms["centred clipping"] < 0.05
