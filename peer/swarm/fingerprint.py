"""A short summary of a peer's state, by which peers notice that they hold different ones.

Each parameter tensor is projected onto a fixed random vector of signs; the projections of two models differ about as
much, relative to their size, as the models do (Johnson-Lindenstrauss). So is each tensor of the optimizer's state. Of
that a joiner has rounded values, and its projections are fewer: it has a tolerance of its own.
Equal bits give equal sketches. Sketches reveal faults and plain lies; but somebody who knows the vectors could make
another state of the same sketch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import torch

Sketch = tuple[float, ...]
SKETCH_SIZE = 32  # projections of parameters; those of further tensors are added to the first ones
MOMENTS_SIZE = 8  # projections of each kind of tensor in the optimizer's state
MAX_MOMENTS = 4  # kinds of them
MAX_SKETCH_SIZE = SKETCH_SIZE + MAX_MOMENTS * MOMENTS_SIZE
DRIFT_TOLERANCE = 1e-4  # far above what different hardware's rounding adds up to, far below one missed step
MOMENTS_TOLERANCE = 1e-2  # far above 16 bits' rounding (3e-5), even if the few projections happen to be small


def sketch_of(parameters: Iterable[torch.Tensor], moments: Sequence[Sequence[torch.Tensor]] = ()) -> Sketch:
    """The sketch of these tensors, which must come in the same order everywhere.

    `moments` are the optimizer's, those of each parameter; some may have fewer than others.
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
    """Whether two sketches belong to clearly different states; one that is missing says nothing."""
    if not own or not other:
        return False
    blocks = [0, *range(SKETCH_SIZE, MAX_SKETCH_SIZE, MOMENTS_SIZE), MAX_SKETCH_SIZE]
    return len(own) != len(other) or any(
        _differ(own[start:end], other[start:end], MOMENTS_TOLERANCE if start else DRIFT_TOLERANCE)
        for start, end in itertools.pairwise(blocks)
    )


def _differ(own: Sketch, other: Sketch, tolerance: float) -> bool:
    distance = math.dist(own, other)
    return not distance <= tolerance * math.hypot(*other) < math.inf
