"""Battery, metered network, active user: from files and commands as the system has them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from peer.limits.cloud import Cloud
from peer.limits.limits import NO_LIMITS, Limits
from peer.limits.monitor import (
    QUIET_S,
    WINDOW_S,
    Activity,
    CpuTimes,
    Machine,
    OtherPrograms,
    is_metered,
    on_battery,
    others_share,
    person_present,
    read_cpu_times,
    read_property,
)

MAINS_ON, MAINS_OFF = {"type": "Mains", "online": "1"}, {"type": "Mains", "online": "0"}
EMPTYING, CHARGING = {"type": "Battery", "status": "Discharging"}, {"type": "Battery", "status": "Charging"}
MOUSE = EMPTYING | {"scope": "Device"}


def make_supplies(path: Path, *supplies: Mapping[str, str]) -> Path:
    """A folder like /sys/class/power_supply."""
    for number, supply in enumerate(supplies):
        folder = path / f"supply{number}"
        folder.mkdir(parents=True)
        for name, value in supply.items():
            (folder / name).write_text(value + "\n")
    return path


def make_busctl(path: Path, answer: str) -> str:
    """A command that answers as `busctl get-property` does, and keeps what it was asked."""
    command = path / "busctl"
    command.write_text(f'#!/bin/sh\necho "$@" > {path}/asked\n{answer}\n')
    command.chmod(0o755)
    return str(command)


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ([MAINS_ON, CHARGING], False),
        ([MAINS_ON, EMPTYING], False),  # a weak charger
        ([MAINS_OFF, EMPTYING], True),
        ([EMPTYING], True),
        ([MAINS_OFF, {"type": "USB", "online": "1"}, CHARGING], False),
        ([{"type": "UPS", "status": "Discharging"}], True),
        ([MOUSE], False),
        ([{"type": "Battery"}], False),
    ],
)
def test_battery(tmp_path: Path, supplies: list[Mapping[str, str]], expected: bool) -> None:
    """Emptied and without mains is on battery; a mouse's battery is not the machine's."""
    assert on_battery(make_supplies(tmp_path, *supplies)) is expected


def test_battery_of_a_system_that_has_no_such_list(tmp_path: Path) -> None:
    """Not known is not no."""
    assert on_battery(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("echo u 1", True),
        ("echo u 3", True),
        ("echo u 2", False),
        ("echo u 4", False),
        ("echo u 0", None),
        ("echo >&2 no such service; exit 1", None),
        ("echo", None),
    ],
)
def test_metered_network(tmp_path: Path, answer: str, expected: bool | None) -> None:
    """NetworkManager's five answers; without it nothing is known."""
    command = make_busctl(tmp_path, answer)
    assert is_metered(partial(read_property, command=command)) is expected
    asked = (tmp_path / "asked").read_text().split()
    assert asked[-4:] == [
        "org.freedesktop.NetworkManager",
        "/org/freedesktop/NetworkManager",
        "org.freedesktop.NetworkManager",
        "Metered",
    ]


@pytest.mark.parametrize(("answer", "expected"), [("echo b true", False), ("echo b false", True), ("exit 1", None)])
def test_person(tmp_path: Path, answer: str, expected: bool | None) -> None:
    """The login manager says whether every session is idle."""
    assert person_present(partial(read_property, command=make_busctl(tmp_path, answer))) is expected


def test_a_missing_command_is_no_error(tmp_path: Path) -> None:
    """Most servers have no NetworkManager, and some systems no bus."""
    assert read_property("a.b", "/a/b", "a.b", "C", command=str(tmp_path / "missing")) is None


def test_others_share_leaves_out_what_is_ours() -> None:
    """A process of ours that ended in between counts for nobody, one that began from its beginning."""
    before = CpuTimes(0.0, 100.0, {1: 10.0, 2: 50.0})
    after = CpuTimes(10.0, 130.0, {1: 12.0, 3: 8.0})
    assert others_share(before, after, cores=4) == pytest.approx((30 - 2 - 8) / 40)


def test_other_programs_must_be_busy_for_a_while_and_then_quiet_for_a_while() -> None:
    """A short burst pauses nothing; after a long one it takes some minutes to go on."""
    programs, busy_s, seen = OtherPrograms(cores=1), 0.0, {}
    for at in range(0, 400, 5):
        burst, work = at == 50, 100 <= at < 160
        busy_s += 5.0 * (1.0 if burst or work else 0.0)
        seen[at] = programs.busy(CpuTimes(float(at), busy_s, {}))
    assert not any(seen[at] for at in range(0, 100, 5))
    began = next(at for at, busy in seen.items() if busy)
    ended = next(at for at, busy in seen.items() if at > began and not busy)
    assert 100 < began <= 100 + WINDOW_S
    assert 155 + QUIET_S <= ended <= 160 + WINDOW_S + QUIET_S


def test_our_own_work_is_found() -> None:
    """What this process computes counts as its own, and is part of the machine's."""
    before = read_cpu_times(time.monotonic)
    while time.process_time() < 0.3 + before.own_s[os.getpid()]:
        sum(range(1000))
    after = read_cpu_times(time.monotonic)
    assert after.own_s[os.getpid()] - before.own_s[os.getpid()] >= 0.2
    assert after.machine_s >= before.machine_s + 0.2


def test_only_what_was_asked_for_is_read(tmp_path: Path) -> None:
    """Without `--polite` no command is started; with it everything is known that the system tells."""
    supplies = make_supplies(tmp_path / "supplies", EMPTYING)
    read = partial(read_property, command=make_busctl(tmp_path, "echo u 1"))
    now = [10.0]
    where = {"supplies": supplies, "read_property": read}
    machine = Machine(NO_LIMITS, Cloud(), tmp_path, lambda: now[0], **where)  # type: ignore[arg-type]
    now.insert(0, 25.0)
    assert machine.read().elapsed_s == 15.0
    assert not (tmp_path / "asked").exists()
    readings = Machine(Limits(polite=True), Cloud(), tmp_path, time.monotonic, **where).read()  # type: ignore[arg-type]
    assert (readings.on_battery, readings.metered, readings.in_use) == (True, True, None)


@pytest.mark.parametrize(
    ("others_s", "idle", "expected"),
    [
        (0.0, None, None),
        (0.0, "true", False),
        (0.0, "false", True),
        (1e4, None, True),
        (1e4, "true", True),
    ],
)
def test_persons_and_programs_both_count(others_s: float, idle: str | None, expected: bool | None) -> None:
    """A video that is being encoded wants the processors as much as a person does."""
    cpu_times = iter([CpuTimes(0.0, 0.0, {}), CpuTimes(WINDOW_S, others_s, {})])
    activity = Activity(lambda: next(cpu_times), read=lambda *_: idle)
    activity.in_use()
    assert activity.in_use() is expected
