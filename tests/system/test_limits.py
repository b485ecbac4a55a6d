"""Real volunteers within their limits: a whole run through the command line.

Each test starts a coordinator with its keeper and a volunteer, processes that import torch; that is most of its time.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.metadata_server import metadata_server
from tests.system.test_recovery import Site, site

__all__ = ["site"]  # the fixture


def test_a_cloud_takes_the_machine_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by the metadata service, the volunteer leaves in order, with 0, and nothing of it is left."""
    with metadata_server() as server:
        monkeypatch.setenv("MANYHANDS_METADATA", f"google@{server.address}")
        site.serve()
        ada = site.join("ada", first=True)
        site.wait_until(lambda: site.ledger.last_step() >= 1)
        family = ada.family()
        server.taken_back = True
        assert ada.process.wait(timeout=30) == 0
    assert psutil.wait_procs(family, timeout=10)[1] == []
    assert "Left the swarm in order" in Path(ada.log_path).read_text()
