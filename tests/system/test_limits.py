"""Real volunteers within their limits: a whole run through the command line."""

from __future__ import annotations

import psutil
import pytest

from auth.errors import ConfigError
from tests.support.commands import Site
from tests.support.metadata_server import metadata_server
from tests.support.waiting import PATIENCE_S


def test_a_cloud_takes_the_machine_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by the metadata service, the volunteer leaves in order, with 0, and nothing of it is left."""
    with metadata_server() as server:
        monkeypatch.setenv("MANYHANDS_METADATA", f"google@{server.address}")
        site.serve()
        ada = site.join("ada", first=True)
        site.wait_until("the ledger has a step", lambda: site.ledger.last_step() >= 1)
        family = ada.family()
        server.taken_back = True
        assert ada.process.wait(timeout=PATIENCE_S) == 0
    assert psutil.wait_procs(family, timeout=PATIENCE_S)[1] == []
    log = ada.log_path.read_text()
    assert "Leaving: Google Cloud takes this machine back." in log
    assert "Left the swarm in order" in log


def test_what_may_be_sent_is_used_up(site: Site) -> None:
    """Too low a rate is refused with what would do; at its total the volunteer leaves in order, and is counted."""
    site.serve()
    slow = site.join("ada", True, "--max-upload-rate", "0.001")
    assert slow.process.wait(timeout=PATIENCE_S) == ConfigError.exit_code
    assert "`--max-upload-rate` (0.001 Mbit/s) is too slow for this run" in slow.log_path.read_text()

    ada = site.join("ada", False, "--max-upload", "30KB", "--max-upload-rate", "5", "--max-download-rate", "5")
    assert ada.process.wait(timeout=PATIENCE_S) == 0
    assert "the 0.03 MB that may be sent are used up" in ada.log_path.read_text()
    assert site.ledger.last_step() >= 1
