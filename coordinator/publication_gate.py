"""Which checkpoints may be shown to the world: those that are whole, no worse than the last, and surely the run's.

Whatever does not pass is kept for the run to resume from, and the operator is told why it goes no further.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch


def why_withheld(
    model: Mapping[str, torch.Tensor],
    *,
    loss: float | None,
    last_loss: float | None,
    most_rise: float,
    is_own: bool,
) -> str:
    """The reason to publish nothing of this state; empty if there is none.

    `loss` is that of the checkpoint's own probe, `last_loss` the same probe's with the checkpoint before, None where
    there is none to compare with. `is_own`: the keeper has computed the state itself, from the swarm's averages.
    """
    broken = next((name for name, tensor in model.items() if not torch.isfinite(tensor).all()), None)
    if broken is not None:
        return f"`{broken}` holds values that are not finite"
    if loss is None or not math.isfinite(loss):
        return "its loss is not finite"
    if last_loss is not None and loss > most_rise * last_loss:
        return f"its loss ({loss:.4f}) is more than {most_rise:g} times that of the checkpoint before ({last_loss:.4f})"
    if not is_own:
        return "its state was taken from a member, and nothing has been averaged with it since"
    return ""
