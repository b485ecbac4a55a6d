"""An average on which no sender has much influence, whatever it sends: centred clipping.

Karimireddy, He, Jaggi 2021 (arXiv 2012.10333), by each reducer for its own parts as in Gorbunov et al. 2021 (arXiv
2106.11257). The average is looked for around a centre, the accepted average of the round before: each sender's
difference from the centre is shortened to a radius, and the mean of these moves the centre; a few times.

The paper's senders have equal batches. Here a sender with few samples has a noisier gradient, by the root of its share;
so its radius is larger by that: `radius` times the usual norm of the average, divided by the root of its share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import torch

from peer.reduction.combine import WeightedPart, weighted_mean


def weighted_median(contributions: Sequence[WeightedPart]) -> torch.Tensor:
    """Compute the median by weight, value by value: half of the weight is on either side."""
    ordered, order = torch.stack([given.part for given in contributions]).sort(dim=0)
    weights = torch.tensor([given.weight for given in contributions], dtype=torch.float64)
    below = weights[order].cumsum(dim=0)
    middle = (below < 0.5 * weights.sum()).sum(dim=0).clamp_(max=len(contributions) - 1)
    return ordered.gather(0, middle.unsqueeze(0)).squeeze(0)


def centered_clipping(
    contributions: Sequence[WeightedPart], centre: torch.Tensor | None, usual: float, radius: float, iterations: int
) -> torch.Tensor:
    """Average one part, with each sender's difference from the centre clipped.

    `centre` is the part's last accepted average and `usual` the norm that its averages have. Without either, the
    centre is the senders' median, value by value, and the usual norm the median of their distances from it, each times
    the root of the sender's share.
    """
    weighing = [given for given in contributions if given.weight > 0]
    if not weighing:
        return weighted_mean(0, contributions)
    total = sum(given.weight for given in weighing)
    roots = [math.sqrt(given.weight / total) for given in weighing]
    known = centre is not None and usual > 0
    found = centre.clone() if centre is not None and known else weighted_median(weighing)
    if not known:
        usual = median(_norm(given.part - found) * root for given, root in zip(weighing, roots, strict=True))
    for _ in range(iterations):
        moved = torch.zeros_like(found)
        for given, root in zip(weighing, roots, strict=True):
            difference = given.part - found
            moved.add_(difference, alpha=root * root * _shortened(_norm(difference), radius * usual / root))
        found.add_(moved)
    return found


def _norm(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


def _shortened(norm: float, most: float) -> float:
    return 1.0 if norm <= most else most / norm
