"""Samples that a recorded run's machines lost, by day and cause: those in reports, and those held at leaving. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.coordinator.recorded_stays import RecordedStay
from benchmarks.coordinator.recorded_steps import RecordedStep
from peer.reporting.messages import LostCause

DAY_S = 86_400.0
HELD_S = 20.0  # how long a machine has computed towards a step, on the average, when it leaves
Key = tuple[str, int, str]  # device, day, cause


def lost_rows(steps: Sequence[RecordedStep], stays: Sequence[RecordedStay], ends_at: float) -> Iterator[dict[str, Any]]:
    """Rows of the table of losses."""
    samples, times, last_step = Counter[Key](), Counter[Key](), dict[Key, int]()

    def lose(stay: RecordedStay, cause: str, lost: int, at: float, step: int) -> None:
        key = (stay.device.id, int(at // DAY_S), cause)
        samples[key] += lost
        times[key] += 1
        last_step[key] = max(step, last_step.get(key, 0))

    for step in steps:
        for share in step.shares:
            if share.lost_samples:
                lose(share.stay, share.lost_reason, share.lost_samples, step.completed_at, step.step)
    for place, stay in enumerate(stays):
        if stay.ended_at < ends_at and stay.device.role == "trainer":
            held = round(HELD_S * stay.device.samples_per_second)
            cause = (LostCause.DIED if place % 9 == 4 else LostCause.LEFT).value
            lose(stay, cause, held, stay.ended_at, _step_at(steps, stay.ended_at))
    for device, day, cause in samples:
        key = (device, day, cause)
        yield {
            "device_id": device,
            "day": day,
            "cause": cause,
            "samples": samples[key],
            "times": times[key],
            "last_step": last_step[key],
        }


def _step_at(steps: Sequence[RecordedStep], at: float) -> int:
    """The step that was being filled then."""
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        if steps[middle].completed_at < at:
            low = middle + 1
        else:
            high = middle
    return low + 1
