"""Compilation of layers with torch.compile, with uncompiled layers as a fallback after any failure.

Only a model's repeated layers are compiled, once for all layers, so the compilation time does not
depend on their number. A new input shape (a microbatch's last part, a new phase) causes one more
compilation, with dynamic shapes. After `VARIANTS` compilations PyTorch runs the layer uncompiled.
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
VARIANTS = 8  # compilations of one layer on one device, for different input shapes
REPEATS = 3  # repetitions of each timed microbatch; the fastest is used
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


class CompiledLayers:
    """A switch between compiled and uncompiled layers for all copies of a model; thread-safe."""

    def __init__(self, models: Sequence[PreTrainedModel], compiler: str = "inductor") -> None:
        """Set up the switch; `compiler` is a backend of torch.compile."""
        self._models, self._compiler = models, compiler
        self._lock = threading.Lock()
        self._report: Callable[[str], None] = logger.warning
        self.on = False

    def switch_on(self, cache: Path, report: Callable[[str], None]) -> None:
        """Compile the layers on their next use; the folder `cache` keeps the code for later use."""
        os.environ.setdefault(CACHE_VARIABLE, str(cache))  # the default folder is shared by all users
        import torch._dynamo.config
        import torch._inductor.config

        torch._inductor.config.compile_threads = 1  # a process pool would outlive a killed worker
        torch._dynamo.config.recompile_limit = VARIANTS * len(self._models)
        self._report = report
        with self._lock:
            self._switch(on=True)

    def switch_off(self) -> None:
        """Run the layers uncompiled from now on."""
        with self._lock:
            self._switch(on=False)

    def give_up(self, error: Exception) -> bool:
        """Switch to uncompiled layers after an error, and report it once; return False if already uncompiled."""
        with self._lock:
            if not self.on:
                return False
            self._switch(on=False)
        logger.warning("compiled layers failed", exc_info=error)
        reason = next(iter(" ".join(str(error).split()).split(". ")), "")
        self._report(f"Layers continue uncompiled: torch.compile has failed ({type(error).__name__}: {reason:.150}).")
        return True

    def _switch(self, *, on: bool) -> None:
        self.on = on
        for model in self._models:
            family_of(model).compile_layers(model, self._compiler if on else None)


def try_compiled(switch_on: Callable[[], None], rehearse: Callable[[], object], clock: Callable[[], float]) -> Trial:
    """Time `rehearse` without and with compiled layers; leave the layers compiled."""
    rehearse()  # warm-up: loads kernels, allocates memory
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
