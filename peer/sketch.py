"""A short summary of a model's parameters, by which peers notice that they hold different ones.

Each parameter tensor is projected onto a fixed random vector of signs; the projections of two models differ about as
much, relative to their size, as the models do (Johnson-Lindenstrauss). Equal bits give equal sketches.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

Sketch = tuple[float, ...]
SKETCH_SIZE = 32  # projections; those of further tensors are added to the first ones
DRIFT_TOLERANCE = 1e-4  # far above what different hardware's rounding adds up to, far below one missed step


def sketch_of(parameters: Iterable[torch.Tensor]) -> Sketch:
    """The sketch of these tensors, which must come in the same order everywhere."""
    sums = [0.0] * SKETCH_SIZE
    for index, parameter in enumerate(parameters):
        flat = parameter.detach().to("cpu", torch.float32).flatten()
        generator = torch.Generator().manual_seed(index)
        signs = torch.randint(0, 2, flat.shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1)
        sums[index % SKETCH_SIZE] += float(torch.dot(flat.double(), signs.double()))
    return tuple(sums)


def drifted(own: Sketch, other: Sketch) -> bool:
    """Whether two sketches belong to clearly different parameters; one that is missing says nothing."""
    if not own or not other:
        return False
    distance = sum((left - right) ** 2 for left, right in zip(own, other, strict=False)) ** 0.5
    size = sum(value**2 for value in other) ** 0.5
    return len(own) != len(other) or distance > DRIFT_TOLERANCE * size
