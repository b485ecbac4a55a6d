"""Faults for chaos.py: functions that take a site and a random generator, and return a function to end the fault.

A fault returns None if its victim is still restarting after an earlier fault.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from shutil import disk_usage

import psutil

from benchmarks.support.network import why_impossible
from benchmarks.trust.chaos_site import NAMES, ChaosSite
from benchmarks.trust.offset_clock import COMPILER
from tests.support.small_disks import FILLER, make_room

CLOCK_BACK_S = (30, 600)  # minimum and maximum change of the clock, in seconds
Heal = Callable[[], None]
Fault = Callable[[ChaosSite, random.Random], "Heal | None"]
Find = Callable[[ChaosSite, str], "psutil.Process | None"]


def _nothing() -> None:
    """Do nothing, because parent processes restart their children, and the site restarts commands."""


def _send(number: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def kill(find: Find, *names: str) -> Fault:
    """Return a fault that draws one of these names at random, and sends SIGKILL to its process."""

    def inject(site: ChaosSite, chance: random.Random) -> Heal | None:
        victim = find(site, chance.choice(names))
        with suppress(psutil.NoSuchProcess):  # the process may have ended already
            if victim is not None:
                victim.kill()
                return _nothing
        return None

    return inject


def stop(find: Find, *names: str) -> Fault:
    """Return a fault that sends SIGSTOP to the process that `find` returns, and SIGCONT to end the fault."""

    def inject(site: ChaosSite, chance: random.Random) -> Heal | None:
        victim = find(site, chance.choice(names))
        with suppress(psutil.NoSuchProcess):
            if victim is not None:
                victim.send_signal(signal.SIGSTOP)
                return lambda: _send(signal.SIGCONT, [victim])
        return None

    return inject


def kill_everything(site: ChaosSite, _: random.Random) -> Heal:
    """Send SIGKILL to all processes except the database's, as if all machines lost power."""
    for kept in site.kept.values():
        _send(signal.SIGKILL, kept.command.family())
    return _nothing


def _database(site: ChaosSite) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(site.server.pid)
    return None


def kill_database(site: ChaosSite, _: random.Random) -> Heal | None:
    """Send SIGKILL to PostgreSQL, which is restarted later and recovers from its log."""
    if (postmaster := _database(site)) is None:
        return None
    family = _family(postmaster)
    _send(signal.SIGKILL, family)
    psutil.wait_procs(family, timeout=10)
    return site.server.start


def stop_database(site: ChaosSite, _: random.Random) -> Heal | None:
    """Send SIGSTOP to all PostgreSQL processes: the kernel still accepts connections, but no query is answered."""
    if (postmaster := _database(site)) is None:
        return None
    family = _family(postmaster)
    _send(signal.SIGSTOP, family)
    return lambda: _send(signal.SIGCONT, [*family, *_family(postmaster)])


def fill_disk(*names: str) -> Fault:
    """Return a fault that fills the disk of one of these hosts completely, and then frees the space."""

    def inject(site: ChaosSite, chance: random.Random) -> Heal:
        name = chance.choice(names)
        path = site.coordinator_dir if name == "serve" else site.state_dir(name)
        with suppress(OSError), (path / FILLER).open("wb") as filler:  # other processes may write at the same time
            while free_bytes := disk_usage(path).free:
                filler.write(b"\0" * min(free_bytes, 1 << 20))
                filler.flush()
        return lambda: make_room(path)

    return inject


def cut_line(*names: str) -> Fault:
    """Return a fault that cuts the link of one of these hosts, and then restores the link."""

    def inject(site: ChaosSite, chance: random.Random) -> Heal | None:
        if site.network is None:
            return None
        name = chance.choice(names)
        site.network.cut(name)
        return partial(site.network.mend, name)

    return inject


def set_clock_back(site: ChaosSite, chance: random.Random) -> Heal | None:
    """Set the clock of the coordinator's processes back, and then correct it."""
    if site.clock is None:
        return None
    site.clock.set(-chance.uniform(*CLOCK_BACK_S))
    return partial(site.clock.set, 0)


def faults() -> dict[str, Fault]:
    """Return the faults possible on this machine: disk and network faults need root, clock faults a C compiler."""
    found: dict[str, Fault] = {
        "SIGKILL: a volunteer's agent": kill(ChaosSite.root, *NAMES),
        "SIGKILL: a worker": kill(ChaosSite.swarm_process, *NAMES),
        "SIGKILL: a volunteer's p2p daemon": kill(ChaosSite.daemon, *NAMES),
        "SIGKILL: a volunteer's swarm node": kill(ChaosSite.node, *NAMES),
        "SIGKILL: the coordinator's supervisor": kill(ChaosSite.root, "serve"),
        "SIGKILL: the service": kill(lambda site, _: site.service(), "serve"),
        "SIGKILL: the keeper": kill(ChaosSite.swarm_process, "serve"),
        "SIGKILL: the keeper's p2p daemon": kill(ChaosSite.daemon, "serve"),
        "SIGKILL: the keeper's swarm node": kill(ChaosSite.node, "serve"),
        "SIGKILL: PostgreSQL": kill_database,
        "SIGKILL: all but PostgreSQL at once": kill_everything,
        "SIGSTOP: a volunteer's agent": stop(ChaosSite.root, *NAMES),
        "SIGSTOP: a worker": stop(ChaosSite.swarm_process, *NAMES),
        "SIGSTOP: a volunteer's p2p daemon": stop(ChaosSite.daemon, *NAMES),
        "SIGSTOP: the service": stop(lambda site, _: site.service(), "serve"),
        "SIGSTOP: the keeper": stop(ChaosSite.swarm_process, "serve"),
        "SIGSTOP: the keeper's p2p daemon": stop(ChaosSite.daemon, "serve"),
        "SIGSTOP: PostgreSQL": stop_database,
    }
    if os.geteuid() == 0:
        found["full disk: a volunteer's"] = fill_disk(*NAMES)
        found["full disk: the coordinator's"] = fill_disk("serve")
    if not why_impossible():
        found["cut line: a volunteer's"] = cut_line(*NAMES)
        found["cut line: the coordinator's"] = cut_line("serve")
    if COMPILER:
        found["clock set back: the coordinator's"] = set_clock_back
    return found
