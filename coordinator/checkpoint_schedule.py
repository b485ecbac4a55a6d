"""When a checkpoint is due, and which of the older ones stay: decisions only, about nothing on disk."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from peer.run_config import Checkpoints


def is_due(
    settings: Checkpoints, *, step: int, newest: int, age_s: float, boundaries: Collection[int], stopping: bool = False
) -> bool:
    """Whether the state after `step` is to be written; the newest checkpoint is of the step `newest`, `age_s` old.

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
