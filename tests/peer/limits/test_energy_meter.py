"""Energy from the kernel's counters and from what a GPU's driver says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peer.limits.energy_meter import LONGEST_S, SAMPLE_S, Energy, EnergyMeter, read_gpu_watts, read_packages
from peer.limits.events import Used
from peer.limits.limits import NO_LIMITS
from peer.limits.policy import Readings
from peer.limits.usage import UsageMeter


def make_zone(powercap: Path, name: str, energy_uj: str, most_uj: str = "1000000000") -> None:
    """A folder as the kernel makes one for each package and each of its parts."""
    zone = powercap / name
    zone.mkdir(parents=True)
    (zone / "energy_uj").write_text(energy_uj + "\n")
    (zone / "max_energy_range_uj").write_text(most_uj + "\n")


def make_driver(path: Path, answer: str) -> str:
    """A command that answers as nvidia-smi does."""
    command = path / "nvidia-smi"
    command.write_text(f'#!/bin/sh\necho "$@" > {path}/asked\n{answer}\n')
    command.chmod(0o755)
    return str(command)


def make_meter(times: list[float], packages: list[float], watts: list[float | None]) -> EnergyMeter:
    """A meter whose every reading sees the next time, counter (joules, anew at 1000) and power."""
    now = iter(times)
    here = [0.0]

    def clock() -> float:
        return here[0]

    def read_package() -> dict[str, tuple[float, float]]:
        here[0] = next(now)  # the processor is read first
        return {"package": (packages.pop(0), 1000.0)} if packages else {}

    def read_watts() -> float | None:
        return watts.pop(0) if watts else None

    return EnergyMeter(clock, read_package, read_watts)


def test_packages_are_read_and_their_parts_are_not_counted_twice(tmp_path: Path) -> None:
    """A zone that cannot be read, as for anybody but root, is left out."""
    make_zone(tmp_path, "intel-rapl:0", "5000000")
    make_zone(tmp_path, "intel-rapl:0:0", "3000000")
    make_zone(tmp_path, "intel-rapl:1", "secret")
    assert read_packages(tmp_path) == {"intel-rapl:0": (5.0, 1000.0)}
    assert read_packages(tmp_path / "nowhere") == {}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("echo 61.5; echo 38.5", 100.0),
        ("echo '[N/A]'", None),
        ("echo nan", None),
        ("echo", None),
        ("exit 9", None),
    ],
)
def test_power_of_gpus(tmp_path: Path, answer: str, expected: float | None) -> None:
    """All cards together; a card that does not measure is not known."""
    assert read_gpu_watts(make_driver(tmp_path, answer), visible="0,1") == expected
    assert (tmp_path / "asked").read_text().split()[-1] == "--id=0,1"


def test_no_driver_is_no_error(tmp_path: Path) -> None:
    """Most machines have none."""
    assert read_gpu_watts(str(tmp_path / "missing")) is None


def test_a_counter_that_begins_anew_loses_nothing() -> None:
    """720 joules are 0.2 watt-hours."""
    meter = make_meter([0.0, 5.0, 10.0], [100.0, 900.0, 20.0], [])
    assert meter.read() == Energy(0.0, None)
    meter.read()
    assert meter.read().processor_wh == pytest.approx((800 + 120) / 3600)


def test_power_is_summed_over_time() -> None:
    """Between two samples the mean of both; over a time in which the machine slept, nothing."""
    slept = SAMPLE_S + LONGEST_S + 1
    meter = make_meter([0.0, SAMPLE_S / 2, SAMPLE_S, slept], [], [100.0, 200.0, 300.0])
    assert [meter.read().gpu_wh for _ in range(2)] == [0.0, 0.0]
    assert meter.read().gpu_wh == pytest.approx(150.0 * SAMPLE_S / 3600)
    assert meter.read().gpu_wh == pytest.approx(150.0 * SAMPLE_S / 3600)


@pytest.mark.parametrize(
    ("processor", "gpu", "ending"),
    [
        (1.25, 100.0, "101.2 Wh by processor and GPU"),
        (None, 7.0, "7.0 Wh by GPU"),
        (7.0, None, "7.0 Wh by processor"),
        (None, None, "energy not known"),
    ],
)
def test_what_was_used_is_told_in_one_line(processor: float | None, gpu: float | None, ending: str) -> None:
    """What is not known is said to be so."""
    used = Used(2_000_000, 3_500_000, processor, gpu, at_end=True)
    assert used.line == f"Used in this stay: 2.0 MB sent, 3.5 MB received, {ending}."


def test_while_it_goes_on_only_the_panel_changes() -> None:
    """Plain output has one line at the end."""
    used = Used(1, 2, 3.0, None)
    assert used.line is None
    assert used.on_panel() == {"used": "0.0 MB sent, 0.0 MB received, 3.0 Wh by processor"}


def test_energy_counts_while_a_worker_runs() -> None:
    """What the machine uses in a pause is not the run's; a meter that says nothing at first begins at zero."""
    account, told = UsageMeter(NO_LIMITS), []
    for step, meter in enumerate([None, 5.0, 6.0, 8.0, 8.5, 10.0]):
        if step == 1:
            account.worker_started(os.getpgrp())
        told.append(account.on(Readings(energy=Energy(processor_wh=meter))).energy.processor_wh)
        if step == 3:
            account.worker_ended()
    assert told == [None, 0.0, 1.0, 3.0, 3.0, 3.0]
