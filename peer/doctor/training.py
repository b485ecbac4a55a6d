"""Stages of training: the device, and how many samples a second it really computes.

PyTorch lives in a helper, so that a microbatch that is too large takes nothing else with it.
"""

from __future__ import annotations

from dataclasses import asdict

from peer.config.run import BUILTIN_RUNS, RunConfig
from peer.doctor.context import Context
from peer.doctor.helper import Helper, HelperError, training_helper_main
from peer.doctor.machine import read_memory
from peer.doctor.questions import Answer, Compute, DetectedDevice, Look, Question, Speed
from peer.doctor.stages import CheckResult, failed, ok, warning

GIB = 1 << 30
MODEL_COPIES = 8  # that the swarm's processes hold beside the helper's: optimizer, averages on their way, buffers
BYTES_PER_PARAMETER = 4


async def check_device(context: Context) -> CheckResult:
    """The device that `--device` names can be used."""
    options = context.options
    try:
        device = await _ask(context, Look(options.device, options.threads))
    except HelperError as error:
        return failed(str(error), "Install manyhands again, into an environment of its own.")
    assert isinstance(device, DetectedDevice)
    if device.error:
        return failed(device.error, "Install PyTorch's build for this machine's GPU, or join with `--device cpu`.")
    data = {"device": device.name, "threads": device.threads, "torch": device.torch}
    remedy = "Install PyTorch's CUDA build and the card's driver, or go on without it."
    if device.fault:
        return warning(f"It would train on {device.name}: {device.fault}.", remedy, **data)
    if device.idle_gpu:
        return warning(f"It would train on {device.name}: PyTorch cannot use the NVIDIA card here.", remedy, **data)
    return ok(f"It would train on {device.name}.", **data)


async def check_speed(context: Context) -> CheckResult:
    """Some seconds of the run's training (without a run: the demo's), on random tokens."""
    config, whose = _model_to_try(context)
    options = context.options
    question = Compute(
        config.to_json(), options.microbatch_size, options.device, options.threads, context.timing.speed_s
    )
    try:
        speed = await _ask(context, question)
    except HelperError as error:  # the kernel kills what asks for too much
        speed = Speed(error=str(error), out_of_memory=error.died)
    assert isinstance(speed, Speed)
    if not speed.error:
        context.speed = speed
    microbatch_size = speed.microbatch_size or options.microbatch_size or config.data.microbatch_size
    return judge_speed(speed, microbatch_size, whose, read_memory().total_bytes)


def judge_speed(speed: Speed, microbatch_size: int, whose: str, memory_bytes: int) -> CheckResult:
    """Judge the measurement on a machine with so much memory."""
    of = f"microbatches of {microbatch_size} of {whose} model"
    if speed.out_of_memory:  # even one by one
        remedy = "Close what else runs, or use a machine with more memory."
        return failed(f"No {of} fit into memory: {speed.error.rstrip('.')}.", remedy)
    if speed.error:
        return failed(
            f"No {of} could be computed: {speed.error.rstrip('.')}.",
            "Join with `--microbatch 1`, or use another machine.",
        )
    needed_bytes = speed.peak_bytes + MODEL_COPIES * BYTES_PER_PARAMETER * speed.parameters
    data = {**asdict(speed), "needed_bytes": needed_bytes}
    found = f"{speed.samples_per_second:,.1f} samples a second, in {of}."
    if needed_bytes > memory_bytes:
        remedy = f"Close what else runs, or use a machine with {needed_bytes / GIB:.0f} GiB of memory."
        return warning(f"{found} Training it needs about {needed_bytes / GIB:.1f} GiB.", remedy, **data)
    return ok(found, **data)


def _model_to_try(context: Context) -> tuple[RunConfig, str]:
    if context.description is not None:
        return context.description.config, "the run's"
    return RunConfig.from_yaml(BUILTIN_RUNS / "demo.yaml"), "the demo's"


async def _ask(context: Context, question: Question) -> Answer:
    if context.training_helper is None:
        context.training_helper = Helper(context.training_helper_main or training_helper_main)
        context.resources.push_async_callback(context.training_helper.end)
    return await context.training_helper.ask(question, context.timing.helper_s)
