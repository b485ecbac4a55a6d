"""Made-up global steps of a recorded run: what each volunteer's machine brought to each, and how it ended. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.coordinator.recorded_stays import LOST, RecordedStay

TARGET = 4096
AVERAGING_S = 9.0
LONGEST_STEP_S = 1800.0
PHASE_AT = 0.6  # of all steps: longer sequences from there on


@dataclass(frozen=True)
class RecordedShare:
    """One machine's work for one step."""

    stay: RecordedStay
    samples: int
    counted: int | None
    loss: float | None
    lost_samples: int
    lost_reason: str
    averaging_s: float


@dataclass(frozen=True)
class RecordedStep:
    """One global step."""

    step: int
    began_at: float
    completed_at: float
    loss: float
    shares: tuple[RecordedShare, ...]


def loss_at(step: int, steps: int, rng: random.Random) -> float:
    """A masked language model's loss: fast at first, slowly for long, up a little where sequences become longer."""
    course = 1.9 + 4.6 * math.pow(1 + step / 250, -0.42) + 4.4 * math.exp(-step / 180)
    since = step - int(PHASE_AT * steps)
    bump = 0.35 * math.exp(-since / 250) - 0.08 if since >= 0 else 0.0
    spike = 0.8 * math.exp(-((step % 3700) - 900) / 25) if 0 <= (step % 3700) - 900 < 120 and step > 3000 else 0.0
    return course + bump + spike + rng.gauss(0, 0.03 + 0.15 / (1 + step / 100))


def steps_of(stays: Sequence[RecordedStay], steps: int, begins_at: float, rng: random.Random) -> Iterator[RecordedStep]:
    """The steps in order; each takes as long as those who are there need for its samples."""
    now, arriving = begins_at, 0
    here: list[RecordedStay] = []
    for step in range(1, steps + 1):
        here = [stay for stay in here if stay.ended_at > now]
        while arriving < len(stays) and (stays[arriving].started_at <= now or not _any_trains(here)):
            now = max(now, stays[arriving].started_at)
            here.append(stays[arriving])
            arriving += 1
        rate = sum(stay.device.samples_per_second for stay in here if stay.device.role == "trainer") or 1.0
        took = min(LONGEST_STEP_S, TARGET / rate) + AVERAGING_S * rng.uniform(0.6, 1.6)
        made = RecordedStep(step, now, now + took, loss_at(step, steps, rng), ())
        yield RecordedStep(step, now, now + took, made.loss, tuple(_shares(made, here, steps, rng)))
        now += took


def mean_step_s(stays: Sequence[RecordedStay], length_s: float, moments: int = 2000) -> float:
    """How long a step takes on the average, while these are there in the first `length_s` of a run that begins at 0."""
    per_second = 0.0
    for moment in range(moments):
        at = (moment + 0.5) * length_s / moments
        here = [stay for stay in stays if stay.started_at <= at < stay.ended_at and stay.device.role == "trainer"]
        rate = sum(stay.device.samples_per_second for stay in here)
        per_second += 1 / (min(LONGEST_STEP_S, TARGET / rate if rate else LONGEST_STEP_S) + 1.1 * AVERAGING_S)
    return moments / per_second


def _any_trains(here: Sequence[RecordedStay]) -> bool:
    return any(stay.device.role == "trainer" for stay in here)


def _shares(
    step: RecordedStep, here: Sequence[RecordedStay], steps: int, rng: random.Random
) -> Iterator[RecordedShare]:
    """One for each machine that is there; now and then one brings nothing to the average."""
    took = step.completed_at - step.began_at - AVERAGING_S
    for stay in here:
        averaging_s = AVERAGING_S * rng.uniform(0.5, 1.7)
        if stay.device.role != "trainer":
            yield RecordedShare(stay, 0, 0, None, 0, "", averaging_s)
            continue
        samples = max(1, round(stay.device.samples_per_second * took * rng.uniform(0.95, 1.05)))
        loss = step.loss + rng.gauss(0, 0.05)
        if rng.random() < 0.015:
            yield RecordedShare(stay, 0, 0, None, samples, rng.choice(LOST), averaging_s)
        elif step.step > steps - 2:  # receipts are still to come
            yield RecordedShare(stay, samples, None, loss, 0, "", averaging_s)
        else:
            counted = samples if rng.random() > 0.002 else samples // 2
            yield RecordedShare(stay, samples, counted, loss, 0, "", averaging_s)
