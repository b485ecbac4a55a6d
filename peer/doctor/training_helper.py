"""The doctor's helper with PyTorch: looks at the device, and trains a run's model for some seconds."""

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
from peer.backends.choice import choose_backend
from peer.backends.device_trial import working_device
from peer.backends.hardware import describe_devices, pick_threads, torch_devices
from peer.backends.memory import is_out_of_memory, most_samples
from peer.config.run import RunConfig
from peer.data.batching.synthetic import random_batch
from peer.data.tokenization.special_tokens import SpecialIds
from peer.doctor.questions import Answer, Compute, DetectedDevice, Look, Question, Speed
from peer.models.build import build_model
from peer.models.optimizers import state_size
from peer.runtime.devices import JAX_DEVICES

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)  # nobody has the run's tokenizer before joining
WARM_UP = 1  # microbatches that do not count: memory is asked for, kernels are compiled
LEAST_MICROBATCHES = 2
MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def answer(question: Question) -> Answer:
    """Answer one question."""
    if isinstance(question, Look):
        return look(question)
    assert isinstance(question, Compute)
    return compute(question, time.perf_counter)


def look(question: Look) -> DetectedDevice:
    """The device, or why it cannot be used."""
    try:
        device, fault = working_device(question.device)
        threads = pick_threads(question.threads)
        name = device if device in JAX_DEVICES else describe_devices(torch_devices(device), threads)
    except (ConfigError, RuntimeError) as error:  # a driver that does not fit PyTorch's build is a RuntimeError
        return DetectedDevice(error=" ".join(str(error).split()))
    return DetectedDevice(name=name, threads=threads, torch=torch.__version__, fault=fault)


def compute(question: Compute, stopwatch: Callable[[], float]) -> Speed:
    """Forward and backward passes on random tokens for the seconds that are asked for."""
    try:
        return _measure(question, stopwatch)
    except ConfigError as error:
        return Speed(error=str(error))
    except (RuntimeError, MemoryError, MemoryLimitError) as error:
        out_of_memory = isinstance(error, MemoryLimitError) or is_out_of_memory(error)
        return Speed(error=_first_sentence(error) or "the system gives no more", out_of_memory=out_of_memory)


def _measure(question: Compute, stopwatch: Callable[[], float]) -> Speed:
    config = RunConfig.from_json(question.config_json)
    vocabulary = config.tokenizer.vocab_size
    model = build_model(config, vocabulary, SPECIAL)
    backend = choose_backend(working_device(question.device)[0], "auto", config, model)(pick_threads(question.threads))
    make_batch = partial(random_batch, config, vocabulary, SPECIAL, rng=np.random.default_rng(0))
    size = question.microbatch_size or backend.microbatch_size(
        config.data.microbatch_size, most_samples(config), make_batch
    )
    batch = backend.stage(make_batch(size))
    for _ in range(WARM_UP):
        backend.accumulate(batch)
    began, microbatches = stopwatch(), 0
    while microbatches < LEAST_MICROBATCHES or stopwatch() - began < question.seconds:
        backend.accumulate(batch)
        microbatches += 1
    seconds, state = stopwatch() - began, state_size(config, model)
    return Speed(
        samples_per_second=microbatches * size / seconds,
        microbatch_size=size,
        microbatches=microbatches,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        moments=state.moments,
        state_bytes=state.wire_bytes,
        gradient_bytes=fewest_bytes(config.averaging, model),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT_BYTES,
    )


def _first_sentence(error: BaseException) -> str:
    return " ".join(str(error).split()).partition(". ")[0][:200]
