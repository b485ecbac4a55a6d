"""Ports for what tests start: no two tests get the same one, though each uses it only after a while."""

from __future__ import annotations

import os
import random
from itertools import islice

from coordinator.run.ports import is_free

FIRST, LAST = 10_000, 20_000  # below those that a demo takes (`CHOSEN_PORTS`)


def own_ports() -> list[int]:
    """This test process's share of the ports, in an order of its own."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports = range(FIRST + number, LAST, processes)
    return random.SystemRandom().sample(ports, len(ports))


_left = iter(own_ports())


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody listens on, and that this function gives to no other test of the run."""
    return list(islice((port for port in _left if is_free(host, port)), count))
