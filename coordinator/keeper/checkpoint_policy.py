"""The policy for checkpoints: when one is due, which older ones are kept, and which may be published. Pure.

A checkpoint is published only if its weights are finite, its probe's loss has not risen too far since the last one, and
the keeper computed its state itself. One that fails is kept for resuming, and the operator is told the reason.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch

from peer.config.run import Checkpoints


def is_due(
    settings: Checkpoints, *, step: int, newest: int, age_s: float, boundaries: Collection[int], stopping: bool = False
) -> bool:
    """Return whether to write the state after `step`; the newest checkpoint is of step `newest` and `age_s` old.

    A phase's first state (`boundaries`) always is, or, if the keeper was away then, the first that it has of the phase.
    """
    every = settings.every_steps
    entered = any(newest < boundary <= step for boundary in boundaries)
    late = settings.every_minutes is not None and age_s >= 60 * settings.every_minutes
    return step > newest and (stopping or entered or late or step - newest >= every or step % every == 0)


def removable(
    settings: Checkpoints, steps: Collection[int], best: Sequence[int] = (), spared: Collection[int] = ()
) -> list[int]:
    """The steps whose checkpoints are to go, of those that there are.

    The newest stay, those of every so many steps, and the best (`best`: steps, the best first) by held-out loss.
    """
    newest = sorted(steps)[-settings.keep :]
    here = [step for step in best if step in steps]
    kept = {*newest, *here[: settings.keep_best], *spared}
    kept |= {step for step in steps if settings.keep_every_steps and step % settings.keep_every_steps == 0}
    return sorted(set(steps) - kept)


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
