"""A whole run, through the command line, while its processes are killed, revoked and told to leave.

Each test trains steps of about two seconds and starts everything a second time; that is why it may take a minute.
"""

from __future__ import annotations

import time

import pytest
import torch
from safetensors.torch import load_file
from transformers import AlbertForPreTraining

from auth.errors import RevokedError
from coordinator.manifests import newest_verified
from coordinator.presence import read_swarm_status
from tests.support.commands import NAMES, Site, service_of
from tests.support.waiting import PATIENCE_S


def test_everything_is_killed_and_comes_back(site: Site) -> None:
    """After `kill -9` of all processes the run resumes from its checkpoint, and the ledger has each step once."""
    commands = [site.serve(), *(site.join(name, first=True) for name in NAMES)]
    site.wait_for_step(6)
    site.wait_until("a checkpoint is stored", lambda: newest_verified(site.run.checkpoints_dir) is not None)
    for command in commands:
        command.kill()
    checkpoint = newest_verified(site.run.checkpoints_dir)
    assert checkpoint is not None
    reached = site.ledger.last_step()

    site.serve()
    status = read_swarm_status(site.sessions)
    assert status is not None
    assert status.step == checkpoint.manifest.step
    for name in NAMES:
        site.join(name, first=False)
    site.wait_for_step(reached + 2)
    site.assert_ledger_is_right()
    assert site.ledger.current_era() == (1 if reached > checkpoint.manifest.step else 0)


def test_service_is_killed_then_a_member_is_revoked_and_the_other_leaves(site: Site) -> None:
    """Training outlives the service; no report is lost; revoked, a command ends with 11, and told to leave, with 0.

    A keeper that has lost its p2p daemon comes back with another, before anybody trains.
    """
    serve = site.serve()
    (daemon,) = serve.daemons()
    daemon.kill()
    site.wait_until(
        "the keeper has lost its daemon",
        lambda: "The p2p daemon of this peer's swarm node has died" in serve.log_path.read_text(),
    )
    began = time.time()
    site.wait_until(
        "the keeper has said again where the swarm stands",
        lambda: (status := read_swarm_status(site.sessions)) is not None and status.updated_at > began,
    )
    assert serve.daemons() != [daemon]
    ada, grace = (site.join(name, first=True) for name in NAMES)
    site.wait_for_step(2)
    before = site.ledger.last_step()
    service_of(serve, site.run.settings.control_port).kill()
    site.wait_for_step(before + 3)
    site.assert_ledger_is_right()

    site.start("revoke", "coordinator", "revoke", str(site.run.path), "grace", "--reason", "a test").process.wait(
        PATIENCE_S
    )
    assert grace.process.wait(timeout=PATIENCE_S) == RevokedError.exit_code
    reached = site.ledger.last_step()
    site.wait_until(
        "ada alone has taken two more steps", lambda: site.ledger.last_step() >= reached + 2
    )  # alone, without grace

    exit_code, left = ada.terminate()
    assert (exit_code, left) == (0, [])
    exit_code, left = serve.terminate()
    assert (exit_code, left) == (0, [])

    checkpoint = newest_verified(site.run.checkpoints_dir)
    assert checkpoint is not None
    assert checkpoint.manifest.step >= reached + 2  # written on leaving
    model = AlbertForPreTraining.from_pretrained(checkpoint.path).eval()
    with torch.no_grad():
        loss = float(model(**load_file(checkpoint.path / "probe.safetensors")).loss)
    assert loss == pytest.approx(checkpoint.manifest.probe_loss, abs=1e-5)
