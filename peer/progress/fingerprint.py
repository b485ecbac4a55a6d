"""Short sketches of peers' states, to detect peers with different states.

Each parameter tensor is projected onto a fixed random vector of signs. The relative difference of
two models' projections is close to the models' own (Johnson-Lindenstrauss lemma). The optimizer's
tensors have fewer projections and are rounded for joiners, so they have a separate tolerance.
Identical states have identical sketches. Sketches reveal faults and simple forgeries, but an
attacker who knows the vectors can construct a different state with the same sketch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import torch

Sketch = tuple[float, ...]
SKETCH_SIZE = 32  # number of projections of the parameters; if there are more tensors, several share one
MOMENTS_SIZE = 8  # number of projections of each kind of tensor in the optimizer's state
MAX_MOMENTS = 4  # maximum number of kinds of tensors in the optimizer's state
MAX_SKETCH_SIZE = SKETCH_SIZE + MAX_MOMENTS * MOMENTS_SIZE
DRIFT_TOLERANCE = 1e-4  # far above accumulated rounding differences, far below the effect of a missed step
MOMENTS_TOLERANCE = 1e-2  # far above 16-bit rounding (3e-5)


def sketch_of(parameters: Iterable[torch.Tensor], moments: Sequence[Sequence[torch.Tensor]] = ()) -> Sketch:
    """Return the sketch of these tensors, which must have the same order on all peers.

    `moments`: the optimizer's tensors for each parameter; the number per parameter may differ.
    """
    parameters = list(parameters)
    kinds = min(MAX_MOMENTS, max(map(len, moments), default=0))
    sums = [0.0] * SKETCH_SIZE
    moment_sums = [[0.0] * MOMENTS_SIZE for _ in range(kinds)]
    for index, parameter in enumerate(parameters):
        generator = torch.Generator().manual_seed(index)
        signs = (
            torch.randint(0, 2, (parameter.numel(),), generator=generator, dtype=torch.int8).mul_(2).sub_(1).double()
        )
        sums[index % SKETCH_SIZE] += _project(parameter, signs)
        for kind, moment in enumerate(moments[index][:kinds] if moments else ()):
            moment_sums[kind][index % MOMENTS_SIZE] += _project(moment, signs)
    return (*sums, *(value for block in moment_sums for value in block))


def _project(tensor: torch.Tensor, signs: torch.Tensor) -> float:
    flat = tensor.detach().to("cpu", torch.float32).flatten().double()
    return float(torch.dot(flat, signs[: len(flat)]))


def drifted(own: Sketch, other: Sketch) -> bool:
    """Return whether two sketches belong to clearly different states; False if either is missing."""
    if not own or not other:
        return False
    if own == other:  # the usual case; infinite or NaN values still count as drift
        return not math.isfinite(math.hypot(*own))
    blocks = [0, *range(SKETCH_SIZE, MAX_SKETCH_SIZE, MOMENTS_SIZE), MAX_SKETCH_SIZE]
    return len(own) != len(other) or any(
        _differ(own[start:end], other[start:end], MOMENTS_TOLERANCE if start else DRIFT_TOLERANCE)
        for start, end in itertools.pairwise(blocks)
    )


def _differ(own: Sketch, other: Sketch, tolerance: float) -> bool:
    distance = math.dist(own, other)
    return not distance <= tolerance * math.hypot(*other) < math.inf
