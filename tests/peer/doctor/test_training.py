"""The training's stages: real microbatches, of every family, and the ways in which they fail."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.config.architectures import ARCHITECTURES
from peer.config.run import BUILTIN_RUNS, RunConfig
from peer.control.reachability import LineSpeed
from peer.data.batching.synthetic import random_batch
from peer.doctor import machine
from peer.doctor.answers import Speed
from peer.doctor.checkup import TRAINING
from peer.doctor.context import Context, Options, RunDescription, Timing
from peer.doctor.helper import as_it_is
from peer.doctor.machine import GIB, judge_pace, judge_speed
from peer.doctor.stages import StageResult, Verdict, run_stages
from peer.doctor.training_helper import SPECIAL, compute, look
from tests.support import doctor_mains
from tests.support.tiny_families import LENGTH, family_config
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.usefixtures("forked")
OK, WARNING, FAILED, SKIPPED = Verdict.OK, Verdict.WARNING, Verdict.FAILED, Verdict.SKIPPED


def ticking() -> Callable[[], float]:
    """A clock that is a second later whenever it is read."""
    ticks = count()
    return lambda: float(next(ticks))


def computed(config: RunConfig, **changes: Any) -> Speed:
    """The speed by a clock that ticks."""
    asked = {"microbatch_size": 3, "device": "cpu", "threads": 1, "seconds": 5.0, "stopwatch": ticking()}
    return compute(config.to_json(), **asked | changes)


async def examine(
    prepare: Callable[[Path], None] = as_it_is, timing: Timing | None = None, **options: Any
) -> dict[str, StageResult]:
    context = Context(
        Options(Path("unused"), **options), prepare_helper=prepare, timing=timing or Timing(helper_s=PATIENCE_S)
    )
    async with context.resources:
        return {finding.stage: finding async for finding in run_stages(TRAINING, context)}


async def test_the_demos_model_is_really_trained() -> None:
    """Without a run the helper trains the demo's model for a moment."""
    found = await examine(timing=Timing(helper_s=PATIENCE_S, speed_s=0.1), device="cpu", threads=1, microbatch_size=2)
    assert found["device"].outcome.data["device"] == "cpu (1 thread)"
    assert found["speed"].verdict is OK
    assert found["speed"].outcome.data["samples_per_second"] > 0
    assert found["speed"].outcome.data["gradient_bytes"] >= 2 * found["speed"].outcome.data["parameters"] > 800_000
    assert "microbatches of 2 of the demo's model" in found["speed"].outcome.found


@pytest.mark.parametrize("device", ["cuda", "cuda:0,3"])
async def test_a_device_that_is_not_here_fails(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Who asks for a GPU where there is none, by number or not, reads what to do; nothing is computed."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the helper inherits it
    found = await examine(device=device)
    assert found["device"].verdict is FAILED
    assert f"`--device {device}`: PyTorch finds no GPU here" in found["device"].outcome.found
    assert "--device cpu" in found["device"].outcome.remedy
    assert found["speed"].verdict is SKIPPED


async def test_a_model_beyond_the_memory_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real allocator at its limit: one matrix of the model needs a gibibyte."""
    demo = RunConfig.from_yaml(BUILTIN_RUNS / "demo.yaml")
    model = demo.model.model_copy(update={"hidden_size": 8192, "intermediate_size": 32768, "num_attention_heads": 64})
    (tmp_path / "demo.yaml").write_text(demo.model_copy(update={"model": model}).to_yaml())
    monkeypatch.setattr(machine, "BUILTIN_RUNS", tmp_path)
    found = await examine(doctor_mains.has_little_memory, device="cpu", threads=1, microbatch_size=2)
    assert found["speed"].verdict is FAILED
    assert "memory" in found["speed"].outcome.found
    assert "more memory" in found["speed"].outcome.remedy


async def test_a_helper_that_dies_fails() -> None:
    """PyTorch that cannot be loaded is said so."""
    found = await examine(doctor_mains.dies)
    assert found["device"].verdict is FAILED
    assert "libcudart" in found["device"].outcome.found


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_family_can_be_measured(architecture: str) -> None:
    """Each as its objective wants it."""
    speed = computed(family_config(architecture))
    assert speed.error == ""
    assert speed.samples_per_second > 0


def test_the_microbatch_is_the_one_that_a_worker_would_find() -> None:
    """Unless a person says another: on a CPU that of the run."""
    chosen, alone = (computed(family_config("albert"), microbatch_size=size) for size in (3, None))
    assert [speed.microbatch_size for speed in (chosen, alone)] == [3, 4]


@pytest.mark.thorough
def test_several_devices_have_a_microbatch_each() -> None:
    """Together they compute as many samples more."""
    assert computed(family_config("albert"), microbatch_size=None, device="jax").microbatch_size == 8 * 4


def test_the_rate_is_that_of_the_clock() -> None:
    """Samples over seconds, until the time is over; the warm-up does not count."""
    speed = computed(family_config("albert"), seconds=5.0)  # asks before each microbatch but the first two
    assert speed.microbatches == 2 + 4
    assert speed.samples_per_second == 3 * 6 / 6


def test_a_model_that_cannot_be_built_is_an_error() -> None:
    """One sentence, whatever a coordinator describes."""
    crooked = family_config("reformer")
    crooked.model.options["axial_pos_embds_dim"] = [1, 1]
    speed = computed(crooked)
    assert "axial" in speed.error
    assert not speed.out_of_memory


def test_a_random_batch_is_like_a_real_one() -> None:
    """Framed, with as many labels as the run asks for, and an order to guess."""
    batch = random_batch(family_config("albert"), 200, SPECIAL, 3, np.random.default_rng(0))
    assert batch.input_ids.shape == (3, LENGTH)
    assert batch.input_ids.max() < 200
    assert len(batch.labels) == len(batch.label_positions) == 3 * round(0.15 * (LENGTH - 2))
    assert batch.sop_labels is not None
    causal = random_batch(family_config("gpt2"), 200, SPECIAL, 3, np.random.default_rng(0))
    assert len(causal.labels) == 3 * (LENGTH - 1)
    assert causal.sop_labels is None
    assert causal.token_type_ids is None


def test_the_device_is_described() -> None:
    """As the worker would say it."""
    device = look("cpu", 2)
    assert (device.name, device.threads, device.error) == ("cpu (2 threads)", 2, "")


def test_memory_that_does_not_suffice_for_the_swarm_is_a_warning() -> None:
    """The helper computed, but a peer also holds the optimizer and averages."""
    speed = Speed(
        samples_per_second=2.0, microbatches=3, parameters=300_000_000, moments=600_000_000, peak_bytes=4 * GIB
    )
    assert judge_speed(speed, 4, "the run's", 64 * GIB).verdict is OK
    outcome = judge_speed(speed, 4, "the run's", 8 * GIB)
    assert outcome.verdict is WARNING
    assert outcome.data["needed_bytes"] > 8 * GIB


@pytest.mark.parametrize(
    ("rate", "up_mbit", "down_mbit", "verdict", "says"),
    [
        (4.0, 10, 50, OK, ["every 64 s", "its gradients take this line 29 s", "state comes once, in 23 s"]),
        (4.0, 10, 12, OK, ["state comes once, in 97 s or more, and this machine then catches up with the swarm"]),
        (0.005, 10, 50, WARNING, ["every 68 s", "one sample takes this device 200 s", "manyhands assist"]),
        (4.0, 7, 50, WARNING, ["every 64 s", "gradients take this line 41 s", "cable", "averaging.delay"]),
        (4.0, 5, 50, FAILED, ["needs 58 s for a step's gradients", "at most", "cable", "averaging_timeout_s"]),
    ],
)
def test_the_pace_is_judged_beside_the_swarms_steps(
    rate: float, up_mbit: float, down_mbit: float, verdict: Verdict, says: list[str]
) -> None:
    """Others compute 60 samples a second towards a batch of 4,096 of ALBERT-large's size."""
    speed = Speed(samples_per_second=rate, parameters=18_000_000, gradient_bytes=36_000_000, state_bytes=145_125_000)
    run = RunDescription(RunConfig(), (), ip_address("192.0.2.1"), samples_per_second=60.0)
    outcome = judge_pace(speed, LineSpeed(up_mbit * 125_000, down_mbit * 125_000), run)
    assert outcome.verdict is verdict
    assert all(part in f"{outcome.found} {outcome.remedy}" for part in says)


def test_one_sample_that_does_not_fit_needs_another_machine() -> None:
    """No advice that cannot be followed."""
    outcome = judge_speed(Speed(error="cannot allocate", out_of_memory=True), 1, "the run's", GIB)
    assert outcome.verdict is FAILED
    assert "--microbatch" not in outcome.remedy
