"""A trainer's gradient remainders, saved in a file between two sessions.

A remainder of PowerSGD contains what the factors of earlier steps left out of this peer's
gradients, which would be lost at each pause or restart. A remainder belongs to the parameters of
its step and decays by 5% per step of absence, to half after 13 steps. The file is deleted when it
is read, so no remainder is sent twice, regardless of how the next session ends.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

logger = logging.getLogger(__name__)
DECAY = 0.95  # factor of a remainder per missed step, because the parameters change
LONGEST_AWAY = 90  # steps after which about one percent of a remainder is left
Remainders = Mapping[int, torch.Tensor]  # tensor index -> sums over samples


@dataclass(frozen=True)
class RemainderOrigin:
    """The state and the gradient encoding to which remainders belong."""

    run: str  # name and authority of the run
    era: int
    step: int
    code: str  # gradient encoding


class RemainderFile:
    """The file with one device's remainders, used by one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path, self._aside = path, path.with_name(f".{path.name}")

    def keep(self, origin: RemainderOrigin, remainders: Remainders) -> None:
        """Save the remainders, if any; on a write error, log a warning and drop them."""
        if not remainders:
            return
        about = {"run": origin.run, "era": str(origin.era), "step": str(origin.step), "code": origin.code}
        try:
            self._aside.parent.mkdir(exist_ok=True)
            tensors = {str(index): tensor.contiguous() for index, tensor in remainders.items()}
            save_file(tensors, self._aside, metadata=about)
            os.utime(self._aside, (0, 0))  # earliest timestamp, so that a full cache deletes this file first
            self._aside.replace(self._path)
        except (OSError, SafetensorError) as error:
            logger.warning("the remainders of gradients are lost, because they cannot be written: %s", error)
            self._delete(self._aside)

    def take(self, origin: RemainderOrigin, shapes: Mapping[int, torch.Size]) -> dict[int, torch.Tensor]:
        """Read and delete the file; return its remainders, decayed by the number of missed steps.

        The result is empty unless the run, era and encoding match and all tensors have `shapes`.
        """
        try:
            with safe_open(self._path, "pt") as file:
                about, names = file.metadata() or {}, list(file.keys())
                found = {int(name): file.get_tensor(name) for name in names}
            missed = origin.step - int(about["step"])
            same = (about["run"], int(about["era"]), about["code"]) == (origin.run, origin.era, origin.code)
        except FileNotFoundError:
            return {}
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            logger.warning("the remainders of gradients are lost, because they cannot be read: %r", error)
            return {}
        finally:
            for path in (self._path, self._aside):
                self._delete(path)
        if not (same and 0 <= missed <= LONGEST_AWAY and _fit(found, shapes)):
            logger.info("the remainders of an earlier session are of another state, and dropped")
            return {}
        logger.info("goes on with the remainders of step %d", origin.step - missed)
        return {index: tensor * DECAY**missed for index, tensor in found.items()}  # copied, because the file is deleted

    @staticmethod
    def _delete(path: Path) -> None:
        with suppress(OSError):
            path.unlink()


def _fit(found: Remainders, shapes: Mapping[int, torch.Size]) -> bool:
    """Return whether the tensors have the given shapes and finite values."""
    if {index: tensor.shape for index, tensor in found.items()} != dict(shapes):
        return False
    return all(tensor.dtype == torch.float32 and bool(torch.isfinite(tensor).all()) for tensor in found.values())
