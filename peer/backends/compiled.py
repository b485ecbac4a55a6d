"""Layers compiled by torch.compile; after any failure they go on uncompiled.

Only a model's repeated layers are compiled, once for all of them, so compiling takes no longer for more layers.
Lengths and sizes that change (the last part of a microbatch, the next phase) are compiled once more, for any size; when
that does not help either, PyTorch itself goes on uncompiled after `VARIANTS`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import PreTrainedModel

from peer.models.build import family_of
from peer.runtime.devices import Trial

logger = logging.getLogger(__name__)
VARIANTS = 8  # of one layer on one device, by its inputs' shapes
REPEATS = 3  # of each measured microbatch; the fastest counts
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


class CompiledLayers:
    """The layers of all copies of a model, switched between compiled and not; safe to call from the copies' threads."""

    def __init__(self, models: Sequence[PreTrainedModel], compiler: str = "inductor") -> None:
        """`compiler` is one of torch.compile's backends."""
        self._models, self._compiler = models, compiler
        self._lock = threading.Lock()
        self._report: Callable[[str], None] = logger.warning
        self.on = False

    def switch_on(self, cache: Path, report: Callable[[str], None]) -> None:
        """Have them compiled when they are next used; what is compiled is kept in `cache` for the next time."""
        os.environ.setdefault(CACHE_VARIABLE, str(cache))  # its default is a folder that all users of the machine share
        import torch._dynamo.config
        import torch._inductor.config

        torch._inductor.config.compile_threads = 1  # here: a pool of processes would outlive a worker that is killed
        torch._dynamo.config.recompile_limit = VARIANTS * len(self._models)
        self._report = report
        with self._lock:
            self._switch(on=True)

    def switch_off(self) -> None:
        """Go on uncompiled."""
        with self._lock:
            self._switch(on=False)

    def give_up(self, error: Exception) -> bool:
        """Go on uncompiled because of an error, and say so once; False if nothing was: it has another reason."""
        with self._lock:
            if not self.on:
                return False
            self._switch(on=False)
        logger.warning("compiled layers failed", exc_info=error)
        reason = next(iter(" ".join(str(error).split()).split(". ")), "")
        self._report(f"Layers go on uncompiled: torch.compile has failed ({type(error).__name__}: {reason:.150}).")
        return True

    def _switch(self, *, on: bool) -> None:
        self.on = on
        for model in self._models:
            family_of(model).compile_layers(model, self._compiler if on else None)


def try_compiled(switch_on: Callable[[], None], rehearse: Callable[[], object], clock: Callable[[], float]) -> Trial:
    """Time a microbatch that leaves nothing behind, without compiled layers and with them, which then stay on."""
    rehearse()  # kernels are loaded, memory is asked for
    plain_s = _fastest(rehearse, clock)
    began = clock()
    switch_on()
    rehearse()
    rehearse()
    compile_s = clock() - began
    return Trial(plain_s, compile_s, _fastest(rehearse, clock))


def _fastest(rehearse: Callable[[], object], clock: Callable[[], float]) -> float:
    seconds = []
    for _ in range(REPEATS):
        began = clock()
        rehearse()
        seconds.append(clock() - began)
    return min(seconds)
