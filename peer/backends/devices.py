"""Selection of the backend for a device, and of compiled layers if they are faster.

The device is checked before joining the swarm, and the backend starts after the fork of the swarm node.
Compilation is tried before training, when no other peer waits, and the outcome is stored. After a
crash, compilation is not retried with the same device, model and PyTorch version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from auth.errors import ConfigError
from peer.backends import Backend
from peer.backends.compiled import CompiledLayers, try_compiled
from peer.backends.hardware import pick_precision, require_jax, torch_devices
from peer.backends.jax_layout import layout_of
from peer.backends.memory import FoundSizes
from peer.backends.replicas import ReplicaBackend
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.runtime.devices import JAX_DEVICES, CompileMode, Stay, Trial, Wanted, worth_trying

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch

StartBackend = Callable[[int], Backend]  # number of compute threads -> backend
logger = logging.getLogger(__name__)
OUTCOMES_FILE = "compiled.json"
CACHE_FOLDER = "compiled"


def choose_backend(device: str, precision: Wanted, config: RunConfig, model: PreTrainedModel) -> StartBackend:
    """Return a function that starts the backend for a device name from `find_device`.

    Raises `ConfigError` if JAX is required but not installed, or does not support the model family.
    """
    if device not in JAX_DEVICES:
        return partial(_start_torch, torch_devices(device), precision, config, model)
    layout_of(model.config, sentence_order=False)
    require_jax(device)
    if precision == "fp16":
        raise ConfigError("`--precision fp16` is for GPUs with PyTorch: JAX computes in bf16 or fp32.")
    return partial(_start_jax, device, precision, config, model)


def _start_torch(
    devices: Sequence[torch.device], wanted: Wanted, config: RunConfig, model: PreTrainedModel, threads: int
) -> Backend:
    """Start PyTorch on the swarm's parameters (CPU) or on replicas of them (accelerators)."""
    torch.set_num_threads(threads)
    precision = pick_precision(wanted, devices)
    if devices == (torch.device("cpu"),):
        return TorchBackend(config, model, precision)
    return ReplicaBackend(config, model, devices, precision)


def _start_jax(device: str, wanted: Wanted, config: RunConfig, model: PreTrainedModel, threads: int) -> Backend:
    """Start JAX, whose threads start as soon as its devices are queried."""
    import jax  # optional dependency, imported when needed

    from peer.backends.jax_backend import JaxBackend

    torch.set_num_threads(threads)  # number of threads for the optimizer
    precision = {"auto": None, "bf16": jax.numpy.bfloat16, "fp32": jax.numpy.float32}[wanted]
    return JaxBackend(config, model, _jax_devices(jax, device), precision)


def _jax_devices(jax: Any, device: str) -> list[Any]:
    try:
        found: list[Any] = jax.local_devices(backend="tpu" if device == "tpu" else None)
    except RuntimeError as error:
        raise ConfigError(
            f"`--device {device}`: JAX can use no such device here ({error}); another program may hold it, "
            "or the extra `tpu` is not installed. `--device auto` takes what there is."
        ) from error
    return found


class TrialOutcome(IntEnum):
    """The stored outcome of a compilation trial."""

    SLOWER = 0
    FASTER = 1
    BEGUN = 2  # the trial has begun but was not completed
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
    """Try compilation if `mode` allows; keep it if it is faster, or if it works and `mode` is `on`.

    `tell` receives a sentence about the outcome; `name` identifies device, model and microbatch.
    """
    if not isinstance(backend, TorchBackend | ReplicaBackend):  # the JAX backend always compiles
        return
    wanted, reason = worth_trying(mode, backend.on_gpus, stay)
    if not wanted:
        logger.info("layers stay uncompiled: %s", reason)
        return
    found = FoundSizes(data_dir / OUTCOMES_FILE)
    key = f"PyTorch {torch.__version__}, {name}"
    before = found.get(key)
    if before == TrialOutcome.BEGUN:
        tell(f"Layers stay uncompiled: the last attempt crashed the process. To try again, delete {OUTCOMES_FILE}.")
        return
    if mode == "auto" and before in (TrialOutcome.SLOWER, TrialOutcome.FAILED):
        return
    found.put(key, TrialOutcome.BEGUN)
    switch_on = partial(backend.layers.switch_on, data_dir / CACHE_FOLDER, tell)
    batch = make_batch()
    trial = try_compiled(switch_on, partial(backend.rehearse, batch), clock)
    found.put(key, _judge(backend.layers, trial, mode, tell))


def _judge(layers: CompiledLayers, trial: Trial, mode: CompileMode, tell: Callable[[str], None]) -> TrialOutcome:
    if not layers.on:  # the reason for falling back has already been reported
        return TrialOutcome.FAILED
    kept = trial.pays or mode == "on"
    if not kept:
        layers.switch_off()
    tell(
        f"Layers {'are compiled' if kept else 'stay uncompiled'}: a microbatch takes {1000 * trial.compiled_s:.0f} ms "
        f"with, {1000 * trial.plain_s:.0f} ms without; compiling took {trial.compile_s:.0f} s."
    )
    return TrialOutcome.FASTER if trial.pays else TrialOutcome.SLOWER
