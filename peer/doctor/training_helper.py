"""The helper's PyTorch functions: detecting the device, and measuring the training speed."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from auth.errors import ConfigError, MemoryLimitError
from peer.averaging.ways import fewest_bytes
from peer.backends import Backend
from peer.backends.device_trial import working_device
from peer.backends.devices import choose_backend
from peer.backends.hardware import describe_devices, pick_threads, torch_devices
from peer.backends.memory import is_out_of_memory, most_samples
from peer.config.run import RunConfig
from peer.data.batching.synthetic import random_batch
from peer.data.tokenization.special_tokens import SpecialIds
from peer.doctor.answers import DetectedDevice, Speed
from peer.models.build import build_model
from peer.models.optimizer_setup import state_size
from peer.runtime.devices import JAX_DEVICES

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)  # placeholders, because the tokens are random
WARM_UP = 1  # microbatches that are not timed, because they allocate memory and compile kernels
LEAST_MICROBATCHES = 2
MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def look(asked: str, asked_threads: int | None) -> DetectedDevice:
    """Return the device that `--device` selects, or the reason why it cannot be used."""
    try:
        device, fault = working_device(asked)
        threads = pick_threads(asked_threads)
        name = device if device in JAX_DEVICES else describe_devices(torch_devices(device), threads)
    except (ConfigError, RuntimeError) as error:  # RuntimeError: incompatible driver
        return DetectedDevice(error=" ".join(str(error).split()))
    return DetectedDevice(name=name, threads=threads, torch=torch.__version__, fault=fault)


def compute(
    config_json: str,
    microbatch_size: int | None,  # None selects the size that a worker would choose
    device: str,
    threads: int | None,
    seconds: float,
    stopwatch: Callable[[], float] = time.perf_counter,
) -> Speed:
    """Train a run's model on random tokens for some seconds; return the speed, or the error."""
    try:
        config = RunConfig.from_json(config_json)
        model = build_model(config, config.tokenizer.vocab_size, SPECIAL)
        backend = choose_backend(working_device(device)[0], "auto", config, model)(pick_threads(threads))
        return _measure(config, model, backend, microbatch_size, seconds, stopwatch)
    except ConfigError as error:
        return Speed(error=str(error), out_of_memory=is_out_of_memory(error.__cause__ or error))
    except (RuntimeError, MemoryError, MemoryLimitError) as error:
        out_of_memory = isinstance(error, MemoryLimitError) or is_out_of_memory(error)
        first_sentence = " ".join(str(error).split()).partition(". ")[0][:200]
        return Speed(error=first_sentence or "the system gives no more", out_of_memory=out_of_memory)


def _measure(
    config: RunConfig,
    model: torch.nn.Module,
    backend: Backend,
    microbatch_size: int | None,
    seconds: float,
    stopwatch: Callable[[], float],
) -> Speed:
    make_batch = partial(random_batch, config, config.tokenizer.vocab_size, SPECIAL, rng=np.random.default_rng(0))
    size = microbatch_size or backend.microbatch_size(config.data.microbatch_size, most_samples(config), make_batch)
    batch = backend.stage(make_batch(size))
    for _ in range(WARM_UP):
        backend.accumulate(batch)
    began, microbatches = stopwatch(), 0
    while microbatches < LEAST_MICROBATCHES or stopwatch() - began < seconds:
        backend.accumulate(batch)
        microbatches += 1
    elapsed_s, state = stopwatch() - began, state_size(config, model)
    return Speed(
        samples_per_second=microbatches * size / elapsed_s,
        microbatch_size=size,
        microbatches=microbatches,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        moments=state.moments,
        state_bytes=state.wire_bytes,
        gradient_bytes=fewest_bytes(config.averaging, model),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT_BYTES,
    )
