"""Compilation of the layers where it pays; the outcome of a trial is remembered.

`peer.training.worker` uses this module before training begins, when nobody in the swarm waits for this peer yet. A
process that dies during the trial leaves a mark: compilation is not tried again with this device, model and version of
PyTorch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from peer.backends import Backend
from peer.backends.compiled import CompiledLayers, try_compiled
from peer.backends.memory import FoundSizes
from peer.backends.replicas import ReplicaBackend
from peer.backends.torch_cpu import TorchBackend
from peer.runtime.devices import CompileMode, Stay, Trial, worth_trying

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch

logger = logging.getLogger(__name__)
OUTCOMES_FILE = "compiled.json"
CACHE_FOLDER = "compiled"


class TrialOutcome(IntEnum):
    """The outcome of a trial, as it is remembered."""

    SLOWER = 0
    FASTER = 1
    BEGUN = 2  # and not ended
    FAILED = 3


def compile_if_it_pays(
    backend: Backend,
    mode: CompileMode,
    stay: Stay,
    name: str,
    make_batch: Callable[[], Batch],
    data_dir: Path,
    tell: Callable[[str], None],
    clock: Callable[[], float],
) -> None:
    """Try compilation as `mode` says and keep it if it is faster (`on`: if it works); `tell` hears one sentence.

    `name` names the device, the model and the microbatch.
    """
    if not isinstance(backend, TorchBackend | ReplicaBackend):  # JAX compiles anyway
        return
    wanted, reason = worth_trying(mode, backend.on_gpus, stay)
    if not wanted:
        logger.info("layers stay uncompiled: %s", reason)
        return
    found = FoundSizes(data_dir / OUTCOMES_FILE)
    key = f"PyTorch {torch.__version__}, {name}"
    before = found.get(key)
    if before == TrialOutcome.BEGUN:
        tell(f"Layers stay uncompiled: the last try ended with the process. To try again, delete {OUTCOMES_FILE}.")
        return
    if mode == "auto" and before in (TrialOutcome.SLOWER, TrialOutcome.FAILED):
        return
    found.put(key, TrialOutcome.BEGUN)
    switch_on = partial(backend.layers.switch_on, data_dir / CACHE_FOLDER, tell)
    batch = make_batch()
    trial = try_compiled(switch_on, partial(backend.rehearse, batch), clock)
    found.put(key, _judge(backend.layers, trial, mode, tell))


def _judge(layers: CompiledLayers, trial: Trial, mode: CompileMode, tell: Callable[[str], None]) -> TrialOutcome:
    if not layers.on:  # they have said why
        return TrialOutcome.FAILED
    kept = trial.pays or mode == "on"
    if not kept:
        layers.switch_off()
    tell(
        f"Layers {'are compiled' if kept else 'stay uncompiled'}: a microbatch takes {1000 * trial.compiled_s:.0f} ms "
        f"with, {1000 * trial.plain_s:.0f} ms without; compiling took {trial.compile_s:.0f} s."
    )
    return TrialOutcome.FASTER if trial.pays else TrialOutcome.SLOWER
