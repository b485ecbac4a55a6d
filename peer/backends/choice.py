"""Choice of the backend for a device: checked before the swarm is joined, started when hivemind has forked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from auth.errors import ConfigError
from peer.backends import Backend
from peer.backends.hardware import pick_precision, require_jax, torch_devices
from peer.backends.jax_layout import layout_of
from peer.backends.replicas import ReplicaBackend
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.runtime.devices import JAX_DEVICES, Wanted

StartBackend = Callable[[int], Backend]  # how many threads compute -> the backend


def choose_backend(device: str, precision: Wanted, config: RunConfig, model: PreTrainedModel) -> StartBackend:
    """Return the function that starts the backend for a device named by `peer.backends.hardware.find_device`.

    Raises `ConfigError` if JAX is wanted and is not installed, or does not know the run's family of models.
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
    """Start on the CPU with the swarm's own parameters, on accelerators with replicas, in one precision for all."""
    torch.set_num_threads(threads)
    precision = pick_precision(wanted, devices)
    if devices == (torch.device("cpu"),):
        return TorchBackend(config, model, precision)
    return ReplicaBackend(config, model, devices, precision)


def _start_jax(device: str, wanted: Wanted, config: RunConfig, model: PreTrainedModel, threads: int) -> Backend:
    """Start JAX, and not earlier: it runs threads of its own as soon as it is asked for devices."""
    import jax  # an extra: only who asked for it has it

    from peer.backends.jax_backend import JaxBackend

    torch.set_num_threads(threads)  # the optimizer's
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
