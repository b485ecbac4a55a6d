"""Whether an average can be what an honest reducer made of these inputs; pure arithmetic for `peer.audit`.

An honest reducer takes the mean by weight. It may count a sender with less weight than it names, as far as it believes
it, and make what is far too large smaller; by what it knows itself, and others cannot know exactly. So an average that
is not the plain mean is looked at once more: it must be made of the inputs, none of them with the wrong sign or more
weight than its own, and in all as much as the total that the reducer named, unless an input was far too large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from peer.compression import decode, encode
from peer.part_reducer import Contribution, weighted_mean
from peer.part_screen import LEAST_SENDERS
from peer.part_screen import MARGIN as LARGE

SAME_WEIGHT = 1e-6  # of it: sums of doubles in another order
TOLERANCE = 1e-3  # of a part's norm: other processors round sums otherwise, and a code now and then to its next value
ROUNDING = 0.02  # of a part's norm that a code may lose; of an input's weight that then cannot be told
MOST_CONDITION = 1e6  # of the inputs' products; above it they are too much alike to be told apart


@dataclass(frozen=True)
class Returned:
    """What a reducer said that the average of a part is."""

    average: torch.Tensor
    weight: float  # behind it
    compression: int  # hivemind's code, in which it travelled


def falsified(returned: Returned, given: Sequence[Contribution]) -> str | None:
    """What is wrong with what a reducer returned, if these are all inputs; None if nothing, or nobody can tell."""
    given = [contribution for contribution in given if contribution.weight > 0]
    weight = sum(contribution.weight for contribution in given)
    if not given or not weight:
        return None
    if not 0 < returned.weight <= weight * (1 + SAME_WEIGHT):
        return f"named {returned.weight:g} samples behind an average of {weight:g}"
    expected = decode(encode(weighted_mean(0, given), returned.compression))
    distance, norm = float((returned.average - expected).norm()), float(expected.norm())
    same_weight = abs(returned.weight - weight) <= SAME_WEIGHT * weight
    if same_weight and distance <= TOLERANCE * norm:
        return None
    if (not same_weight or _any_is_large(given)) and _may_be_honest(returned, given):
        return None
    return f"returned an average that is {distance / norm if norm else math.inf:.2g} of its norm off the true one"


def _may_be_honest(returned: Returned, given: Sequence[Contribution]) -> bool:
    """Whether caps on weights and limits on norms may have made this of the inputs."""
    inputs = torch.stack([contribution.part.flatten() for contribution in given]).double()  # (senders, values)
    average = returned.average.flatten().double()
    products = inputs @ inputs.T
    if not float(torch.linalg.cond(products)) <= MOST_CONDITION:
        return True
    found = torch.linalg.solve(products, inputs @ average)  # of each input, how much is in the average
    most = torch.tensor([contribution.weight / returned.weight for contribution in given], dtype=torch.float64)
    if float((average - found @ inputs).norm()) > ROUNDING * float(average.norm()):
        return False
    if bool((found < -ROUNDING).any()) or bool((found > most + ROUNDING).any()):
        return False
    return float(found.sum()) >= 1 - ROUNDING * len(given) or _any_is_large(given)


def _any_is_large(given: Sequence[Contribution]) -> bool:
    """Whether a reducer may have made any of these smaller.

    It measures by the senders' median, of two by the other or by its own gradient, or by something larger.
    """
    total = sum(contribution.weight for contribution in given)
    norms = [float(contribution.part.norm()) for contribution in given]
    typical = median(norms) if len(norms) >= LEAST_SENDERS else min(norms)
    return any(
        contribution.weight / total * norm > LARGE * typical for contribution, norm in zip(given, norms, strict=True)
    )
