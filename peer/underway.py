"""What a worker holds that is in no step yet, as it last said: so that the agent can tell of it if the worker dies."""

from __future__ import annotations

from peer.lost_causes import Lost, LostCause
from peer.messages import Progress, Ready, StepReport, Stopped, WorkerMessage


class Underway:
    """Of one worker."""

    def __init__(self) -> None:
        self._step, self._samples, self._ended = 1, 0, False

    def hear(self, message: WorkerMessage) -> None:
        """Follow what it says."""
        match message:
            case Ready():
                self._step, self._samples = message.step + 1, 0
            case Progress():
                self._step, self._samples = message.step + 1, message.own_samples
            case StepReport():
                self._step, self._samples = message.step + 1, 0
            case Lost() | Stopped():  # it tells itself what it loses by leaving
                self._ended = True

    def lost(self, was_told_to_stop: bool) -> Lost | None:
        """What its end has lost; None where that is nothing, or it has told it."""
        if self._ended or not self._samples:
            return None
        cause = LostCause.LEFT if was_told_to_stop else LostCause.DIED
        return Lost(self._step, {cause.value: self._samples})
