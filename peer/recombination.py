"""Whether an average can be what an honest reducer made of these inputs; pure arithmetic for `peer.audit`.

An honest reducer takes the mean by weight. It may count a sender with less weight than it names, as far as it believes
it, and make what is far too large smaller; by what it knows itself, and others cannot know exactly. So an average that
is not the plain mean is looked at once more: a mean of the inputs must lie as near as its code rounds, with none of the
wrong sign or more weight than its own, and in all as much as the total that the reducer named, unless an input was far
too large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from peer.compression import decode, encode, most_rounding
from peer.part_reducer import Contribution, weighted_mean
from peer.part_screen import LEAST_SENDERS
from peer.part_screen import MARGIN as LARGE

SAME_WEIGHT = 1e-6  # of it: sums of doubles in another order
TOLERANCE = 1e-3  # of a part's norm: other processors round sums otherwise, and a code now and then to its next value
MOST_MOVES = 1000  # for each input, in search of the nearest mean


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
    """Whether caps on weights and limits on norms may have made this of the inputs, and its code have rounded it so."""
    inputs = torch.stack([contribution.part.flatten() for contribution in given]).double()  # (senders, values)
    average = returned.average.flatten().double()
    most = [contribution.weight / returned.weight for contribution in given]
    if _any_is_large(given):
        inputs, most = torch.cat([inputs, torch.zeros_like(average)[None]]), [*most, 1.0]  # what was made smaller
    lost = TOLERANCE * float(average.norm()) + most_rounding(returned.average, returned.compression)
    return _is_near_a_mean(average, inputs, torch.tensor(most, dtype=torch.float64), lost)


def _is_near_a_mean(average: torch.Tensor, inputs: torch.Tensor, most: torch.Tensor, lost: float) -> bool:
    """Whether some mean of the inputs, with at most so much of each, lies within `lost` of the average.

    Moves weight from the input that leads away to the one that leads nearest, until one lies so near, or none can. How
    much of each is in the average may be impossible to tell where inputs are alike; how near the nearest mean lies is
    not.
    """
    products, pulls = (inputs @ inputs.T).numpy(), (inputs @ average).numpy()
    own, room = float(average @ average), most.numpy()
    shares = room / room.sum()
    for _ in range(MOST_MOVES * len(shares)):
        slopes = products @ shares - pulls
        squared = own + float(shares @ (slopes - pulls))
        less, more = np.where(shares > 0, slopes, -np.inf), np.where(shares < room, slopes, np.inf)
        off, to = int(less.argmax()), int(more.argmin())
        gap = float(less[off] - more[to])
        if squared <= lost**2:
            return True
        if squared - 2 * gap > lost**2:  # no mean is nearer than that
            return False
        bend = float(products[to, to] + products[off, off] - 2 * products[to, off])
        move = min(gap / bend if bend > 0 else np.inf, room[to] - shares[to], shares[off])
        shares[to], shares[off] = shares[to] + move, shares[off] - move
    return True  # nobody can tell


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
