"""A volunteer with compiled layers: a whole run through the command line, most of whose time is compiling."""

from __future__ import annotations

import signal

from peer.compilation import OUTCOMES_FILE
from tests.system.test_recovery import Site, site

__all__ = ["site"]  # the fixture


def test_a_volunteer_compiles_before_it_takes_part(site: Site) -> None:
    """It says what that took and gained, trains with the others, and leaves in order.

    Some 90 s on two busy cores: a C++ compiler runs for each of the layer's variants.
    """
    site.serve()
    ada = site.join("ada", True, "--compile", "on")
    site.wait_until(lambda: site.ledger.last_step() >= 2)
    ada.process.send_signal(signal.SIGINT)
    assert ada.process.wait(timeout=30) == 0
    log = ada.log_path.read_text()
    assert "Layers are compiled: a microbatch takes" in log
    assert "go on uncompiled" not in log
    assert (site.base / "ada" / "data" / OUTCOMES_FILE).exists()
