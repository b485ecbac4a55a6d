"""A swarm in two parts, which find each other again."""

from __future__ import annotations

from sqlalchemy import select

from coordinator.ledger.keeper_status import read_swarm_status
from coordinator.store.models import Refusal
from tests.support.commands import NAMES, Site
from tests.support.ports import free_ports
from tests.support.small_run import HOST


def test_volunteers_follow_a_keeper_that_has_moved(site: Site) -> None:
    """It listens somewhere else, and knows nobody: their sessions tell them, and nothing that they did is undone."""
    serve = site.serve()
    volunteers = [site.join(name, first=True) for name in NAMES]
    site.wait_for_step(2)
    serve.terminate()
    settings = site.run.path / "settings.yaml"
    old_port, (new_port,) = site.run.settings.swarm_port, free_ports(HOST, 1)
    settings.write_text(settings.read_text().replace(f"swarm_port: {old_port}", f"swarm_port: {new_port}"))

    site.serve()
    reached = site.ledger.last_step()
    site.wait_until(
        "the keeper knows both peers",
        lambda: (status := read_swarm_status(site.database)) is not None and status.peers == len(NAMES),
    )
    site.wait_until(
        "both peers have reported another step",
        lambda: any(row.step > reached and row.devices == len(NAMES) for row in site.ledger.steps()),
    )
    assert site.ledger.current_era() == 0
    with site.database() as session:  # however rounds end meanwhile, all are honest
        assert session.scalars(select(Refusal.reason)).all() == []
    assert all(volunteer.process.poll() is None for volunteer in volunteers)
    site.assert_ledger_is_right()
