"""A trial of the devices selected by `--device`: each must compute a product and its gradient.

A driver's device count does not show whether a device works: PyTorch's build may lack its kernels,
another program may occupy its memory, or a container may list it without access. The trial runs in
a separate process, because a faulty device may hang or kill the process. The agent spawns the trial
before joining (`peer.agent.worker_process`), and the doctor's helper runs it too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from auth.errors import ConfigError
from peer.backends.hardware import count_gpus, has_mps, has_tpu, require_jax, torch_devices
from peer.reporting.messages import DeviceTried, TrialPlan
from peer.runtime.devices import JAX_DEVICES, pick_device
from peer.runtime.processes import die_with_parent, lead_own_group, write_output_to

MAX_LOG_BYTES = 1_000_000
SIDE = 64  # side length of the square matrices
WRONG = "it computes wrong results"
UNSEEN = "PyTorch cannot use the NVIDIA card here, perhaps because it is a build without CUDA"


def run_trial(plan: TrialPlan, pipe: Connection, parent_pid: int) -> None:
    """Run the trial in the spawned process, and send its result."""
    lead_own_group()
    die_with_parent(parent_pid)
    write_output_to(Path(plan.log), MAX_LOG_BYTES)
    try:
        device, fault = working_device(plan.device)
        pipe.send(DeviceTried(device, fault))
    except ConfigError as error:
        pipe.send(DeviceTried("", str(error)))


def working_device(name: str) -> tuple[str, str]:
    """Return the device to train on, and the faults of any better devices ("" if there are none).

    Raises `ConfigError` if an explicitly selected device is missing or faulty.
    """
    tpu, gpus, mps = has_tpu(), count_gpus(), has_mps()
    faults: list[str] = []
    while (device := pick_device(name, gpus, tpu, mps)) != "cpu":
        found = _faults_of(device)
        faults += [f"{part} cannot be used here ({fault})" for part, fault in found.items() if fault]
        if name != "auto" and faults:
            raise ConfigError(f"`--device {name}`: {'; '.join(faults)}. Fix this, or use `--device cpu`.")
        if working := [part.removeprefix("cuda:") for part, fault in found.items() if not fault]:
            return f"cuda:{','.join(working)}" if device.startswith("cuda") else device, "; ".join(faults)
        tpu, gpus, mps = tpu and device != "tpu", 0 if device.startswith("cuda") else gpus, mps and device != "mps"
    if name == "auto" and not faults and shutil.which("nvidia-smi"):
        faults.append(UNSEEN)
    return device, "; ".join(faults)


def _faults_of(device: str) -> dict[str, str]:
    """Try each device; return device name -> fault, which is "" for a working device."""
    if device in JAX_DEVICES:
        require_jax(device)
        return {device: _fault(partial(_jax_gradients, device))}
    return {str(each): _fault(partial(_torch_gradients, each)) for each in torch_devices(device)}


def _fault(compute: Callable[[], list[float]]) -> str:
    """Return the first line of the error in `compute`, or "" if its result is correct."""
    try:
        sums = compute()
    except Exception as error:  # noqa: BLE001 - drivers and builds raise errors of arbitrary types
        return (str(error) or type(error).__name__).strip().partition("\n")[0][:200].rstrip(".")
    return "" if sums and set(sums) == {2.0 * SIDE**3} else WRONG


def _torch_gradients(device: torch.device) -> list[float]:
    """Return the sum of all entries of the gradient of sum(A @ A), where A is a matrix of ones."""
    ones = torch.ones(SIDE, SIDE, device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad((ones @ ones).sum(), [ones])
    return [float(gradient.sum())]  # `float` waits for the device


def _jax_gradients(device: str) -> list[float]:
    """Compute the gradient sum of `_torch_gradients` with JAX, once on each of its devices."""
    import jax  # optional dependency, imported when needed

    gradient = jax.jit(jax.grad(lambda ones: (ones @ ones).sum()))
    devices = jax.local_devices(backend="tpu" if device == "tpu" else None)
    return [float(gradient(jax.device_put(jax.numpy.ones((SIDE, SIDE)), each)).sum()) for each in devices]
