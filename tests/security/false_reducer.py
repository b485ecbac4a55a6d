"""What a member changes to reduce falsely: it claims the fattest line, and returns whatever it wants.

Patches in its own process only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from peer.reduction.combine import PartReducer, ReducedPart
from tests.security.processes import Orders

Falsify = Callable[[torch.Tensor, int], torch.Tensor]  # (the true average, the receiver's index) -> what it is given
FALSE_AVERAGES: Mapping[str, Falsify] = {
    "not finite": lambda average, _: torch.full_like(average, float("nan")),
    "huge": lambda average, _: average * 1e6,
    "flipped": lambda average, _: -average,
    "unlike": lambda average, receiver: -average if receiver % 2 else average,
}


def return_false_averages(orders: Orders) -> None:
    """From now on let this process, and what it forks, reduce falsely while it is told to; call it before joining."""
    honest = PartReducer.accumulate_part

    async def accumulate_part(reducer: PartReducer, sender_index: int, *args: Any, **kwargs: Any) -> ReducedPart:
        reduced = await honest(reducer, sender_index, *args, **kwargs)
        falsify = FALSE_AVERAGES.get(orders.attack)
        return replace(reduced, average=falsify(reduced.average, sender_index)) if falsify else reduced

    PartReducer.accumulate_part = accumulate_part  # type: ignore[method-assign]
