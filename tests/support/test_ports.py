"""Tests for the ports of tests, which run in several processes at once."""

from __future__ import annotations

import pytest

from coordinator.run.ports import CHOSEN_PORTS
from tests.support.ports import FIRST, LAST, free_ports, own_ports


def test_no_port_is_given_twice() -> None:
    """Not even while nobody listens there yet."""
    ports = [port for _ in range(5) for port in free_ports("127.0.0.1", 3)]
    assert len(set(ports)) == 15


def test_processes_share_the_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each port is one process's own, and none is a demo's."""
    ports: list[int] = []
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    for worker in ("gw0", "gw1", "gw2"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        ports += own_ports()
    assert sorted(ports) == list(range(FIRST, LAST))
    assert min(CHOSEN_PORTS) >= LAST
