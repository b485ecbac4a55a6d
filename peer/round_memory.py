"""The memory of rounds that are over, given back to the system. Used by the averagers, in their forked processes.

A failed round ends in exceptions, and these hold each other, through the frames that they passed, in circles: the round
with its copy of the gradients, and its open streams. Python finds such circles when a quarter as many new objects as
old ones have come together. A process with all of PyTorch imported has so many old ones that this takes a thousand
rounds. What is freed then, glibc keeps in pieces between what is still used.
"""

from __future__ import annotations

import ctypes
import gc
from functools import cache
from typing import Any


def freeze_imported() -> None:
    """Leave all that exists now out of every later search for circles; for the beginning of a forked process.

    So a search takes a few milliseconds, and copies no page that is shared with the process it was forked from.
    """
    gc.freeze()


def give_back() -> None:
    """Free what only circles of objects hold, and return free pages to the system, where it is Linux with glibc."""
    gc.collect()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def forget_frames(error: BaseException | None) -> None:
    """Drop the frames that an exception and those behind it hold, for somebody may keep the exception for long."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


@cache
def _malloc_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
