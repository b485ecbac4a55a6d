"""A peer's remainders from one session to its next: what it has computed and not sent, in a file of its own.

With sparse gradients a remainder holds much of the last twenty steps, and who trains an hour a day would lose it each
time. A remainder belongs to the parameters of its step, so it decays for each step that the peer missed, as it does
from step to step in `peer.averaging.error_feedback`. The file is gone once it is read: what is in it counts once,
however the next session ends.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from peer.averaging.error_feedback import DECAY

logger = logging.getLogger(__name__)
LONGEST_AWAY = 90  # steps: hardly one percent of a remainder would be left


@dataclass(frozen=True)
class RemainderOrigin:
    """The state and the code of gradients to which remainders belong."""

    era: int
    step: int
    code: str  # of gradients, with the shapes of all tensors


class RemainderFile:
    """The file; one process has it at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def keep(self, origin: RemainderOrigin, remainders: Mapping[int, torch.Tensor]) -> None:
        """Write remainders, by the tensors' index, if there are any; what cannot be written is lost, with a warning."""
        if not remainders:
            return
        aside = self._path.with_name(f".{self._path.name}")
        about = {"era": str(origin.era), "step": str(origin.step), "code": origin.code}
        try:
            aside.parent.mkdir(exist_ok=True)
            save_file({str(index): tensor.contiguous() for index, tensor in remainders.items()}, aside, metadata=about)
            aside.replace(self._path)
        except (OSError, SafetensorError) as error:
            logger.warning("what was not sent of earlier steps is lost, because it cannot be written: %s", error)
            with suppress(OSError):
                aside.unlink()

    def take(self, origin: RemainderOrigin) -> dict[int, torch.Tensor]:
        """Return what is left at this state of the remainders, and delete them; nothing of another course or code."""
        if not self._path.exists():
            return {}
        try:
            with safe_open(self._path, "pt") as file:
                about, found = file.metadata() or {}, {int(name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            missed = origin.step - int(about["step"])
            fits = (int(about["era"]), about["code"]) == (origin.era, origin.code) and 0 <= missed <= LONGEST_AWAY
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            logger.warning("what was not sent of earlier steps is lost, because it cannot be read: %r", error)
            found, missed, fits = {}, 0, False
        finally:
            self._path.unlink(missing_ok=True)
        if not (fits and all(bool(torch.isfinite(tensor).all()) for tensor in found.values())):
            return {}
        logger.info("goes on with what was not sent by step %d", origin.step - missed)
        return {index: tensor.mul_(DECAY**missed) for index, tensor in found.items()}
